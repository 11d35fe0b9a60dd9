"""Reads a Parquet file of an unmounted image with pandas: `pandas_parquet.py IMAGE PATH`."""

import sys

import pandas

image, path = sys.argv[1:]
table = pandas.read_parquet(f"ironmap://{image}::{path}")
print(len(table), table["value"].sum())
