//! The `ironmap` program.
mod bench;

use clap::Parser;

#[derive(Parser)]
enum Cli {
    Bench(bench::BenchArgs),
}

fn main() {
    let Cli::Bench(args) = Cli::parse();
    if let Err(error) = bench::run(&args) {
        eprintln!("ironmap: {error}");
        std::process::exit(1);
    }
}
