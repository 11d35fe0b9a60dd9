//! `ironmap integrity`: manages devices that verify every sector.

mod check;
mod format;
mod open;
mod scrub;

use std::fmt::Write;

use indicatif::ProgressBar;
use ironmap::Location;
use ironmap::fs::uuid_text;
use ironmap::integrity::{Info, Mode, TupleKind};
use ironmap_image::failure::named;
use ironmap_image::{Failure, Report};
use serde::Serialize;

use crate::output::progress;

/// Makes, opens, checks and scrubs integrity devices
///
/// An integrity device keeps a tag for each sector of a data device, on a separate device (TAGS) or in the tail of the data device. Every
/// read is verified. A changed or misplaced sector gives an error instead of data. The data itself stays unchanged and in place. All
/// commands accept an integrity device as the volume integrity:DATA,TAGS or integrity:DATA.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ironmap integrity format disk.img,tags.img
  ironmap ls integrity:disk.img,tags.img:/
  ironmap integrity scrub disk.img,tags.img")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Format(format::Args),
    Open(open::Args),
    Check(check::Args),
    Scrub(scrub::Args),
}

pub(crate) fn run(args: &Args, report: &mut Report) -> Result<(), Failure> {
    match &args.command {
        Command::Format(args) => format::run(args, report),
        Command::Open(args) => open::run(args, report),
        Command::Check(args) => check::run(args, report),
        Command::Scrub(args) => scrub::run(args, report),
    }
}

/// The geometry of an integrity device, for JSON.
#[derive(Serialize)]
pub(crate) struct Geometry {
    uuid: String,
    data_size: u64,
    sectors: u64,
    interval: u32,
    guard: &'static str,
    mode: &'static str,
    region: u64,
    generations: bool,
    /// The application tag, or `None` if the device counts generations.
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<u16>,
    journal: u64,
    area_start: u64,
    area_size: u64,
}

impl Geometry {
    pub(crate) fn new(info: &Info) -> Self {
        Self {
            uuid: uuid_text(&info.uuid),
            data_size: info.data_size,
            sectors: info.sectors(),
            interval: info.interval,
            guard: match info.kind {
                TupleKind::T10 => "crc16",
                TupleKind::Nvme64 => "crc64",
            },
            mode: match info.mode {
                Mode::Bitmap => "bitmap",
                Mode::Journal => "journal",
            },
            region: info.region,
            generations: info.generations,
            tag: (!info.generations).then_some(info.application),
            journal: info.journal,
            area_start: info.area_start,
            area_size: info.area_len(),
        }
    }

    /// The geometry as one line of text.
    pub(crate) fn text(&self) -> String {
        let Self { sectors, interval, guard, mode, region, journal, area_start, area_size, .. } =
            self;
        let mut text = format!(
            "{sectors} sectors of {interval} bytes, {guard}, {mode} mode, regions of {region}"
        );
        let mut add = |more: std::fmt::Arguments<'_>| {
            let _ = text.write_fmt(more);
        };
        if *journal > 0 {
            add(format_args!(", a journal of {journal}"));
        }
        if self.generations {
            add(format_args!(", generations"));
        }
        add(format_args!("; the tags occupy {area_size} bytes"));
        if *area_start > 0 {
            add(format_args!(" from {area_start} on"));
        }
        text
    }
}

/// The progress bar for work on a complete device.
struct Bar(ProgressBar);

impl Bar {
    fn new(what: &'static str) -> Self {
        Self(progress(what, 0))
    }

    fn show(&self, done: u64, all: u64) {
        self.0.set_length(all);
        self.0.set_position(done);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// The failure to open or make a device.
fn failed(device: &Location, error: ironmap::Error) -> Failure {
    Failure::open(&named(device, error))
}
