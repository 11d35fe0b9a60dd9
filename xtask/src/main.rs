//! The chores of the project's scripts that are more than glue: the summary of the tests, and `./x clean-up`.

mod clean_up;
mod summary;

use std::fs;
use std::process::ExitCode;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    let result = match args.as_slice() {
        ["summary", tests, skips] => print_summary(tests, skips),
        ["clean-up"] => clean_up::run(),
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

/// Of a log of tests, and one of skips.
fn print_summary(tests: &str, skips: &str) -> Result {
    let tests = fs::read(tests)?;
    let skips = fs::read_to_string(skips)?;
    print!("{}", summary::summary(&String::from_utf8_lossy(&tests), &skips));
    Ok(())
}
