
"use strict";
const { run, seed, names, asked } = JSON.parse(document.getElementById("data").textContent);
const QUIET = 0.7; // a token likelier than this is left uncoloured
const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu;
const SHORT = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };
let at = 0;

// What cannot be seen, or would turn the text around, is shown as an escape.
const shown = text => String(text).replace(HIDDEN, c =>
  c === "\u200c" || c === "\u200d" ? c : SHORT[c] || "\\u" + c.codePointAt(0).toString(16).padStart(4, "0"));
const percent = p => p == null ? "-" : p === 0 ? "0%" : (100 * p).toFixed(p < 0.01 ? 3 : 1) + "%";
const number = (x, digits) => x == null ? "-" : x.toFixed(digits);
const named = id => id in names ? "'" + shown(names[id]) + "'" : "#" + id;
const told = v => shown(typeof v === "object" ? JSON.stringify(v) : v);
const params = r => Object.entries(r.params).map(([k, v]) => (k === r.name ? "" : shown(k) + " ") + told(v)).join(", ");

// An element with text and children; nothing of the run is ever read as markup.
function make(tag, kind, ...inside) {
  const it = document.createElement(tag);
  if (kind) it.className = kind;
  it.append(...inside.map(x => x instanceof Node ? x : String(x)));
  return it;
}
function table(titles, rows) {
  const head = make("tr", "", ...titles.map(t => make("th", "", t)));
  return make("div", "wide", make("table", "", make("thead", "", head), make("tbody", "", ...rows)));
}
function share(p) {
  const bar = make("div", "share");
  bar.style.width = Math.round(48 * (p || 0)) + "px";
  return make("td", "", percent(p), bar);
}

function head() {
  const stop = run.stop_reason ? " (" + run.stop_reason.kind + ")" : "";
  return [
    make("h1", "", "Run " + run.run_id),
    make("div", "soft", shown(run.model), ", ", run.usage.prompt_tokens, " + ", run.usage.completion_tokens,
      " tokens, seed ", seed, ", ended: ", shown(run.finish_reason + stop), ", ", run.created),
    ...asked.map(line => make("div", "soft", shown(line))),
    ...(run.steps.length ? [make("div", "soft", "Colour: how unlikely the token was to the model. Left and right go from step to step.")] : []),
  ];
}

function strip() {
  const said = (text, id) => text == null ? "#" + id + " " : shown(text);
  const ended = t => t.text && t.text.includes("\n") ? [make("br")] : [];
  const pieces = run.prompt.flatMap(t =>
    [make("span", "token prompt " + (t.kind === "control" ? "control" : ""), said(t.text, t.id)), ...ended(t)]);
  run.steps.forEach((s, n) => {
    const p = Math.exp(s.logprob_raw), b = make("button", "token", said(s.text, s.id) || "\u00b7");
    if (p < QUIET) b.style.backgroundColor = `hsl(${Math.round(60 * p / QUIET)} 85% 50% / ${(0.55 * (1 - p / QUIET) + 0.1).toFixed(3)})`;
    b.type = "button";
    b.title = percent(p);
    b.setAttribute("aria-label", `step ${n}, ${s.text == null ? "#" + s.id : "'" + shown(s.text) + "'"}, ${percent(p)}`);
    b.addEventListener("click", () => select(n));
    pieces.push(b, ...ended(s));
  });
  return pieces;
}

function draw(s) {
  const put = (run.forced || []).includes(s.step);
  if (s.u == null) return [make("p", "soft", put ? "The token was put there." : run.beams ? "Beam search: nothing was drawn." : "Greedy: nothing was drawn.")];
  const interval = make("div", "interval"), mark = make("div", "draw");
  interval.style.left = 100 * s.cdf_lo + "%";
  interval.style.width = 100 * (s.cdf_hi - s.cdf_lo) + "%";
  mark.style.left = 100 * s.u + "%";
  return [make("div", "ruler", interval, mark),
    make("div", "soft", `drawn ${number(s.u, 6)}${put ? ", its interval is" : " in"} [${number(s.cdf_lo, 6)}, ${number(s.cdf_hi, 6)})` +
      (put ? ": the token was put there, whatever was drawn" : ""))];
}

function ledger(s) {
  return table(["policy step", "alive", "mass removed", "entropy", "best after"], s.ledger.map(r => make("tr", "",
    make("td", "", shown(r.name), " ", make("span", "soft", params(r))),
    make("td", "", r.removed_count ? r.alive_before + " \u2192 " + r.alive_after : r.alive_after),
    make("td", "", r.removed_count ? percent(r.mass_removed) : "-"),
    make("td", "", number(r.entropy, 3)),
    make("td", "name", r.top.length ? named(r.top[0][0]) + " " + percent(r.top[0][1]) : "-"))));
}

function candidates(s) {
  const rows = s.candidates.map(c => make("tr", "",
    make("td", "name" + (c.id === s.id ? " chosen" : ""), named(c.id)), make("td", "", c.id),
    make("td", "", number(c.logit, 3)), share(c.p_raw), share(c.p_final), make("td", "", shown(c.removed_by || ""))));
  const rest = key => Math.max(0, 1 - s.candidates.reduce((sum, c) => sum + (c[key] || 0), 0));
  rows.push(make("tr", "", make("td", "soft", "all others"), make("td"), make("td"), share(rest("p_raw")), share(rest("p_final")), make("td")));
  return table(["candidate", "id", "logit", "before", "after", "removed by"], rows);
}

function beams() {
  if (!run.beams || !run.beams.hypotheses.length) return [];
  const rows = run.beams.hypotheses.map(h => make("tr", "", make("td", "", number(h.score, 4)), make("td", "", number(h.total, 4)),
    make("td", "", h.ids ? h.ids.length : "-"), make("td", "name", h.text == null ? (h.ids || []).join(" ") : shown(h.text), h.finished ? "" : " (cut off)")));
  return [make("h2", "", "Hypotheses, best first; the first is the text"), table(["score", "sum", "tokens", "text"], rows)];
}

function step(n) {
  const s = run.steps[n];
  if (!s) return [make("p", "soft", run.retain === "none" ? "None of its tokens were kept (retain none)." : "The run has no steps to show.")];
  const name = s.text == null ? "#" + s.id : "'" + shown(s.text) + "'";
  return [
    make("h2", "", `Step ${n} of ${run.steps.length}: ${name}`),
    make("div", "soft", `id ${s.id}, position ${s.position}, ${percent(Math.exp(s.logprob_raw))} before the policy, ` +
      `${percent(Math.exp(s.logprob_final))} after, rank ${s.rank_raw}, entropy ${number(s.entropy, 3)} nats, logits ${shown(s.logits_hash)}`),
    ...draw(s),
    ...(s.ledger ? [make("h2", "", "Ledger"), ledger(s)] : []),
    ...(s.candidates ? [make("h2", "", "Candidates"), candidates(s)] : [make("p", "soft", "Recorded without ledger and candidates.")]),
  ];
}

function select(n) {
  at = Math.max(0, Math.min(n, run.steps.length - 1));
  const all = document.querySelectorAll("button.token"), now = all[at];
  all.forEach((b, i) => { b.setAttribute("aria-current", i === at); b.tabIndex = i === at ? 0 : -1; }); // one stop for Tab
  if (now) now.scrollIntoView({ block: "nearest" });
  if (now && document.activeElement.matches("button.token")) now.focus();
  document.getElementById("step").replaceChildren(...step(at));
}

document.getElementById("head").append(...head());
document.getElementById("strip").append(...strip());
document.getElementById("strip").after(...beams());
document.addEventListener("keydown", e => {
  const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: run.steps.length - 1 }[e.key];
  if (to === undefined || e.ctrlKey || e.metaKey || e.altKey || e.shiftKey) return;
  e.preventDefault();
  select(to);
});
select(0);
