//! The chores of `./x`, started in the root of the workspace.

mod aarch64;
mod api;
mod beneath;
mod ceph;
mod clean_up;
mod deb;
mod debian_source;
mod fio;
mod foreign;
mod lab;
mod lint;
mod mount;
mod nightly;
mod package;
mod shell;
mod test;
mod users;
mod xfsprogs;

use std::process::ExitCode;

use shell::{Tee, fail};

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    let result = match args.as_slice() {
        ["test", args @ ..] => test::run(args),
        ["lint"] => lint::run(),
        ["api"] => api::write(),
        ["lab"] => lab::test(&Tee::default(), None),
        ["lab", "count"] => lab::count(),
        ["lab", "xfs"] => lab::xfs(),
        ["fuzz", seconds] => nightly::fuzz(seconds),
        ["aarch64", names @ ..] => aarch64::test(names, &Tee::default()),
        ["miri"] => nightly::miri(),
        ["crash", states] => beneath::crash(states),
        ["beneath", layers @ ..] => beneath::suites(layers),
        ["mount", "all", ..] => mount::all(),
        ["mount", "programs", ..] => mount::programs(),
        ["mount", "databases", ..] => mount::databases(),
        ["mount", "random", ..] => mount::random(),
        ["mount", "speed", args @ ..] => mount::speed(args),
        ["foreign", name @ ..] => foreign::tests(name.first().unwrap_or(&"")),
        ["fio", "build", ..] => fio::build(),
        ["fio", args @ ..] => fio::beside_bench(args),
        ["xfsprogs"] => xfsprogs::print(),
        ["ceph", rounds] => shell::ironmap().and_then(|ironmap| ceph::test(&ironmap, rounds)),
        ["users"] => users::from_a_fresh_checkout(),
        ["package"] => package::run(),
        ["deb", "test"] => deb::test(),
        ["deb", args @ ..] => deb::run(args),
        ["clean-up"] => clean_up::run(),
        _ => fail(format!("there is no chore {args:?}: see ./x help")),
    };
    result.map_or_else(|failure| failure.status().into(), |()| ExitCode::SUCCESS)
}
