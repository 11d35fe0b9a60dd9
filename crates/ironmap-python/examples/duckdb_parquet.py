"""Queries a Parquet file of an unmounted image with DuckDB: `duckdb_parquet.py IMAGE PATH`."""

import sys

import duckdb
import fsspec

image, path = sys.argv[1:]
duckdb.register_filesystem(fsspec.filesystem("ironmap", location=image))
query = f"SELECT count(*), sum(value) FROM read_parquet('ironmap://{image}!{path}')"
[row] = duckdb.sql(query).fetchall()
print(*row)
