"""One Parquet file for each table of schema.sql, in a folder; `run` is the run's id in all of them.

SELECT text, rank_raw FROM 'RUN.parquet/position.parquet' WHERE step IS NOT NULL
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glassbox.errors import GlassboxError
from glassbox.trace.copy import COLUMNS, tables
from glassbox.trace.export.source import Source
from glassbox.trace.sqlite import columns

MISSING = "parquet needs pyarrow: pip install 'glassbox-lm[parquet]'"


def write(runs: Sequence[Source], path: Path) -> None:
    """Raises GlassboxError where pyarrow is not installed."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise GlassboxError(MISSING) from None

    kinds = {"INTEGER": pa.int64(), "REAL": pa.float64(), "TEXT": pa.string(), "BLOB": pa.binary()}
    declared = {(table, name): kinds[kind] for table, name, kind, _ in columns()}
    found: dict[str, list[tuple[Any, ...]]] = {table: [] for table in COLUMNS}
    for one in runs:
        for table, rows in tables(one.rows):
            found[table] += [row if table == "run" else (one.run.run_id, *row) for row in rows]
    path.mkdir()
    for table, rows in found.items():
        fields = [(name, declared[table, name]) for name in COLUMNS[table]]
        schema = pa.schema(fields if table == "run" else [("run", pa.string()), *fields])
        arrays = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)]
        pq.write_table(pa.Table.from_arrays(arrays, schema=schema), path / f"{table}.parquet")
