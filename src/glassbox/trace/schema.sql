-- A Glassbox trace store, version 1. One file; an exported run is the same schema in a file of its own.
--
-- Ids are the key, bytes stand beside text, NULL means "not measured" or "not kept", never zero.
-- Numbers that need all 64 unsigned bits (seed, sequence) are decimal TEXT: SQLite's INTEGER is signed.
-- The file is recognised by `PRAGMA application_id` ("GLBX"); `PRAGMA user_version` is the version of this schema.
-- A reader ignores columns it does not know, so columns may be added within a version.
--
-- Digests are BLAKE2b over the values as read back (see codec.py): run.digest covers what was asked and the segments and
-- is the key of every other digest; position.digest covers one row with its ledger and candidates, beam.digest one row;
-- run.seal covers all rows, the ending and `incomplete`. Free are the keys `n` and `run` as such, and, while there is no
-- ending, `incomplete` and which rows came last. They find damage and careless edits, not a forger who computes them anew.

CREATE TABLE IF NOT EXISTS run (
  n                INTEGER PRIMARY KEY,   -- local to this file; `id` is the name that travels
  id               TEXT NOT NULL UNIQUE,
  created          INTEGER NOT NULL,      -- milliseconds since 1970, wall clock
  owner            TEXT NOT NULL,         -- the process that writes it: tells "running" from "interrupted" (alive.py)
  level            TEXT NOT NULL,         -- ids | look
  retain           TEXT NOT NULL,         -- text | ids | none
  model            TEXT NOT NULL,
  seed             TEXT NOT NULL,
  policy           TEXT NOT NULL,         -- JSON
  max_tokens       INTEGER NOT NULL,
  stop             TEXT,                  -- JSON list
  stop_ids         TEXT,                  -- JSON list
  ignore_eos       INTEGER NOT NULL,
  sequence         TEXT NOT NULL,
  options          TEXT NOT NULL DEFAULT '{}',  -- JSON: reuse, salt, speculate, kv, …; group, beam, cut, branch; chat with text
  messages         TEXT,                  -- JSON list
  sources          TEXT,                  -- JSON: parameter -> where its value came from
  prompt_text      TEXT,
  prompt_lossy     TEXT,                  -- JSON list: what the vocabulary could not say
  prompt_notes     TEXT,                  -- JSON list
  prompt_tokens    INTEGER NOT NULL,
  model_sha256     TEXT NOT NULL,
  tokenizer_sha256 TEXT NOT NULL,
  template_sha256  TEXT,
  engine           TEXT NOT NULL,
  glassbox         TEXT NOT NULL,
  threads          INTEGER NOT NULL,
  clock            TEXT,
  parent           TEXT,                  -- id of the run this one branches from
  parent_step      INTEGER,
  digest           BLOB NOT NULL,
  -- written while it runs
  ledger_steps     TEXT NOT NULL DEFAULT '[]',  -- JSON list of {name, params}; ledger.policy_step points into it
  incomplete       TEXT,                  -- why rows are missing, when the store failed but the generation went on
  -- written at the end; finish_reason is NULL while it runs, and stays so when the writer dies
  finish_reason    TEXT,
  stop_kind        TEXT,
  stop_detail      TEXT,                  -- JSON; of a run that failed: the ledger of that step
  text             TEXT,
  cached_tokens    INTEGER,
  completion_tokens INTEGER,
  queue_ns         INTEGER,
  first_token_ns   INTEGER,
  total_ns         INTEGER,
  reuse_why        TEXT,                  -- why no more of the prompt came out of the cache
  error            TEXT,
  last_token_ns    INTEGER,
  seal             BLOB
);

-- Where each stretch of the prompt came from.
CREATE TABLE IF NOT EXISTS segment (
  run     INTEGER NOT NULL,
  i       INTEGER NOT NULL,
  origin  TEXT NOT NULL,
  role    TEXT,
  text    TEXT,
  trusted INTEGER NOT NULL,               -- whether special tokens count in it
  PRIMARY KEY (run, i)
) WITHOUT ROWID;

-- One row a token, prompt and generated.
CREATE TABLE IF NOT EXISTS position (
  run           INTEGER NOT NULL,
  pos           INTEGER NOT NULL,         -- in the whole sequence
  step          INTEGER,                  -- NULL for the prompt
  id            INTEGER,
  bytes         BLOB,
  text          TEXT,                     -- what became visible with this token
  segment       INTEGER,                  -- prompt only, as are the next four
  kind          TEXT,
  span_lo       INTEGER,                  -- byte span in prompt_text
  span_hi       INTEGER,
  kv            TEXT,                     -- computed | reused
  logprob_raw   REAL,                     -- of the model's own distribution
  logprob_final REAL,                     -- after the policy
  rank_raw      INTEGER,
  ties          INTEGER,
  entropy       REAL,                     -- nats, of the model's own distribution
  u             REAL,                     -- the draw, in [cdf_lo, cdf_hi)
  cdf_lo        REAL,
  cdf_hi        REAL,
  counter       TEXT,                     -- JSON [seed, sequence, position]; NULL where these are the run's own and pos
  logits_hash   BLOB,                     -- 8 bytes
  model_ns      INTEGER,
  policy_ns     INTEGER,
  drafted       INTEGER,                  -- whether it was guessed beforehand and found right
  text_offset   INTEGER,                  -- characters of prompt and output before the one its first byte is of
  digest        BLOB NOT NULL,
  PRIMARY KEY (run, pos)
) WITHOUT ROWID;

-- What each policy step did at each generated position.
CREATE TABLE IF NOT EXISTS ledger (
  run            INTEGER NOT NULL,
  pos            INTEGER NOT NULL,
  i              INTEGER NOT NULL,        -- order in which the steps ran
  policy_step    INTEGER NOT NULL,        -- index into run.ledger_steps
  params         TEXT,                    -- JSON, only where they differ from those in run.ledger_steps
  alive_before   INTEGER,
  alive_after    INTEGER,
  mass_removed   REAL,
  removed_count  INTEGER,
  removed_ids    BLOB,                    -- int32, little-endian; the first few only
  entropy        REAL,
  top            BLOB,                    -- (int32 id, float64 probability), little-endian
  argmax_changed INTEGER,
  PRIMARY KEY (run, pos, i)
) WITHOUT ROWID;

-- The tokens in sight at each generated position, in the order they were given.
CREATE TABLE IF NOT EXISTS candidate (
  run        INTEGER NOT NULL,
  pos        INTEGER NOT NULL,
  i          INTEGER NOT NULL,
  id         INTEGER NOT NULL,
  logit      REAL,
  p_raw      REAL,
  p_final    REAL,
  removed_by TEXT,                        -- name of the policy step, NULL when it survived
  PRIMARY KEY (run, pos, i)
) WITHOUT ROWID;

-- The candidates of a beam search: who continued whom, and what became of it.
CREATE TABLE IF NOT EXISTS beam (
  run     INTEGER NOT NULL,
  step    INTEGER NOT NULL,
  i       INTEGER NOT NULL,               -- among the candidates of this step; of one group, best first
  grp     INTEGER NOT NULL,               -- group of beams
  beam    INTEGER,                        -- place among the live ones after this step; NULL: it is none of them
  parent  INTEGER,                        -- place, after the step before, of the one it continues; NULL: the prompt
  id      INTEGER NOT NULL,
  logprob REAL NOT NULL,                  -- of the id, after the policy
  score   REAL NOT NULL,                  -- sum of logprobs so far, less diversity penalties; its length is step + 1
  state   TEXT NOT NULL,                  -- live | finished | dropped
  bytes   BLOB,
  text    TEXT,                           -- what became visible with it
  digest  BLOB NOT NULL,
  PRIMARY KEY (run, step, i)
) WITHOUT ROWID;

-- Inner values kept on request.
CREATE TABLE IF NOT EXISTS tensor (
  run    INTEGER NOT NULL,
  pos    INTEGER NOT NULL,
  point  TEXT NOT NULL,                   -- resid_pre.3, attn_out.5, ...
  dtype  TEXT NOT NULL,
  shape  TEXT NOT NULL,                   -- JSON list
  data   BLOB NOT NULL,
  digest BLOB NOT NULL,
  PRIMARY KEY (run, pos, point)
);
