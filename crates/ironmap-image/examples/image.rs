//! Makes, fills and resizes images with the library alone. `bench.py` can measure this program or `ironmap`, because both have these
//! commands:
//!
//! - `image mkfs -q -d TREE [--owner=UID:GID] IMAGE SIZE`
//! - `image cp -a FILE... IMAGE:/DIRECTORY`
//! - `image resize IMAGE SIZE`

use std::error::Error;
use std::io;
use std::sync::Arc;

use ironmap::Location;
use ironmap::fs::Follow;
use ironmap_image::context::Caller;
use ironmap_image::copy::{CopyOptions, Keep, copy};
use ironmap_image::opening::Opening;
use ironmap_image::progress::Bar;
use ironmap_image::target::{Subject, Target};
use ironmap_image::{Context, Image, Report, Stop};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Err(error) = run(&arguments) {
        eprintln!("image: {error}");
        std::process::exit(1);
    }
}

fn run(arguments: &[String]) -> Result<(), Box<dyn Error>> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match &arguments[..] {
        ["mkfs", "-q", "-d", tree, owner @ .., image, size] => {
            let mut new = Image::ext4().add(*tree).size(bytes(size)?);
            for owner in owner {
                let (uid, gid) = owner
                    .strip_prefix("--owner=")
                    .and_then(|owner| owner.split_once(':'))
                    .ok_or("the owner is --owner=UID:GID")?;
                new = new.owner(uid.parse()?, gid.parse()?);
            }
            if let Ok(seconds) = std::env::var("SOURCE_DATE_EPOCH") {
                new = new.source_date_epoch(seconds.parse()?);
            }
            new.build(*image)?;
        }
        ["cp", "-a", files @ .., to] => {
            let (image, directory) = to.rsplit_once(':').ok_or("the destination is IMAGE:/PATH")?;
            let to = Target { volume: Location::try_from(image)?, path: directory.into() };
            let options = CopyOptions {
                sources: files.iter().map(|file| Subject::Host(file.into())).collect(),
                recurses: true,
                follow: Follow::NotLast,
                keep: Keep::ALL,
                no_clobber: false,
                no_target_directory: false,
                verbose: false,
            };
            let context =
                Context::new(Box::new(Silent), Stop::default(), Opening::default(), Ok(None));
            let mut report = Report::new(context);
            copy(&options, &Subject::Volume(to), &mut report)?;
            report.result()?;
        }
        ["resize", image, size] => {
            Image::open(*image)?.grow(bytes(size)?)?;
        }
        _ => return Err("the commands are mkfs, cp and resize".into()),
    }
    Ok(())
}

/// Prints each message, and shows no progress.
struct Silent;

impl Caller for Silent {
    fn print(&self, message: &str) {
        eprintln!("image: {message}");
    }

    fn say(&self, message: &str) -> io::Result<()> {
        self.print(message);
        Ok(())
    }

    fn show_progress(&self) -> Option<Arc<dyn Bar>> {
        None
    }

    fn catch_signals(&self) {}
}

/// Parses a size in bytes, or in GiB with the suffix `G`.
fn bytes(text: &str) -> Result<u64, Box<dyn Error>> {
    Ok(match text.strip_suffix('G') {
        Some(count) => count.parse::<u64>()? << 30,
        None => text.parse()?,
    })
}
