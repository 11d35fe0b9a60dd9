//! Tasks of the project's scripts that are written in Rust: the summary of the tests, `./x clean-up`, and `./x bench-page`.

mod bench_page;
mod bench_table;
mod clean_up;
mod summary;

use std::fs;
use std::path::Path;
use std::process::ExitCode;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    let result = match args.as_slice() {
        ["summary", tests, skips] => print_summary(tests, skips),
        ["clean-up"] => clean_up::run(),
        ["bench-page"] => bench_page::write(Path::new(".")),
        ["bench-page", "check"] => bench_page::check(Path::new(".")),
        ["bench-page", "take", name, results] => {
            bench_page::take(Path::new("."), name, Path::new(results))
        }
        _ => Err(format!("there is no chore {args:?}: see ./x help").into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("x: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the summary of two logs: the output of the tests, and the list of skipped tests.
fn print_summary(tests: &str, skips: &str) -> Result {
    let tests = fs::read(tests)?;
    let skips = fs::read_to_string(skips)?;
    print!("{}", summary::summary(&String::from_utf8_lossy(&tests), &skips));
    Ok(())
}
