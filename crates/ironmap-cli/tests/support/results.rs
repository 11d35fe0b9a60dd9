//! The bench's results.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::common::image::scratch;

/// Names a program built for release: what a debug build takes says nothing.
pub(crate) const RELEASE: &str = "IRONMAP_BIN";

/// The arguments of a bench that writes its results to a file.
pub(crate) fn bench_arguments<'a>(
    json: &Path,
    args: impl IntoIterator<Item = &'a str>,
) -> Vec<OsString> {
    let args = ["bench"].into_iter().chain(args).map(OsString::from);
    args.chain(["--json".into(), json.into()]).collect()
}

/// Runs the release build's bench; its results.
pub(crate) fn bench(args: &[&str]) -> Vec<Value> {
    bench_of(&std::env::var_os(RELEASE).expect("a release build"), args)
}

/// Runs the bench of any build.
pub(crate) fn bench_of(program: &OsStr, args: &[&str]) -> Vec<Value> {
    let dir = scratch();
    let json = dir.path().join("results.json");
    let all = bench_arguments(&json, args.iter().copied());
    let output = Command::new(program).args(all).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    let document: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    document["results"].as_array().unwrap().clone()
}
