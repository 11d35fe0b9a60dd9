//! Runs `ironmap bench`, the benchmark command, and reads its results.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::ffi::OsStr;
use std::process::Command;

use serde_json::Value;

use crate::common::image::scratch;

/// The variable that names a release build of the program. The times of a debug build are not significant.
pub(crate) const RELEASE: &str = "IRONMAP_BIN";

/// Runs `bench` of the release build, and returns its results.
pub(crate) fn bench(args: &[&str]) -> Vec<Value> {
    bench_of(&std::env::var_os(RELEASE).expect("a release build"), args)
}

/// Runs `bench` of this build, and returns its results.
pub(crate) fn bench_of(program: &OsStr, args: &[&str]) -> Vec<Value> {
    let dir = scratch();
    let json = dir.path().join("results.json");
    let output =
        Command::new(program).arg("bench").args(args).arg("--json").arg(&json).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    let document: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    document["results"].as_array().unwrap().clone()
}
