//! Copies of several host files into a volume, compared with those of cp(1).

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use ironmap::Location;
use ironmap::fs::Follow;
use ironmap_image::context::Caller;
use ironmap_image::copy::{CopyOptions, Keep, copy};
use ironmap_image::opening::Opening;
use ironmap_image::progress::Bar;
use ironmap_image::room::{self, Format, Overwrite};
use ironmap_image::target::{Subject, Target};
use ironmap_image::{Context, Image, Report, Stop};

/// Collects the messages.
#[derive(Clone, Default)]
struct Messages(Arc<Mutex<Vec<String>>>);

impl Caller for Messages {
    fn print(&self, message: &str) {
        self.0.lock().unwrap().push(message.to_owned());
    }
    fn say(&self, _: &str) -> io::Result<()> {
        Ok(())
    }
    fn show_progress(&self) -> Option<Arc<dyn Bar>> {
        None
    }
    fn catch_signals(&self) {}
}

fn run(command: &mut Command) -> (bool, String) {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let output = command.env("PATH", path).env("LC_ALL", "C").output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

/// One reader reads all sources. One message is printed for each source that cannot be read, and for each source with the same name as an
/// earlier source. The messages are in the order of the sources. All other sources are copied as by `cp -a`.
#[test]
fn several_sources_are_copied_as_by_cp() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("a/tree/below")).unwrap();
    fs::create_dir(at("b")).unwrap();
    fs::write(at("a/tree/below/file"), "below").unwrap();
    fs::hard_link(at("a/tree/below/file"), at("b/linked")).unwrap();
    fs::write(at("a/same"), "first").unwrap();
    fs::write(at("b/same"), "second").unwrap();
    fs::write(at("b/large"), vec![7; 3 << 20]).unwrap();
    fs::write(at("b/empty"), "").unwrap();
    std::os::unix::fs::symlink("large", at("b/link")).unwrap();
    let sources =
        ["a/same", "missing", "a/tree", "b/same", "b/linked", "b/large", "b/empty", "b/link"]
            .map(at);

    let image = at("disk.img");
    Image::ext4().size(32 << 20).build(&image).unwrap();
    let messages = Messages::default();
    let opening = Opening::default();
    let context = Context::new(Box::new(messages.clone()), Stop::default(), opening, Ok(None));
    let mut report = Report::new(context);
    let options = CopyOptions {
        sources: sources.iter().cloned().map(Subject::Host).collect(),
        recurses: true,
        follow: Follow::NotLast,
        keep: Keep::ALL,
        no_clobber: false,
        no_target_directory: false,
        verbose: false,
    };
    let volume = Location::try_from(&*image).unwrap();
    copy(&options, &Subject::Volume(Target { volume, path: b"/".to_vec() }), &mut report).unwrap();
    report.result().unwrap_err();
    let messages = messages.0.lock().unwrap().clone();
    assert!(messages.len() == 2, "{messages:?}");
    assert!(messages[0].contains("missing: No such file"), "{messages:?}");
    assert!(messages[1].contains("/same: an earlier source has created this file"), "{messages:?}");

    fs::create_dir(at("expected")).unwrap();
    let (is_copied, said) = run(Command::new("cp").arg("-a").args(&sources).arg(at("expected")));
    assert!(!is_copied && said.lines().count() == 2, "{said}");
    Image::open(&image).unwrap().extract("/", at("copy")).unwrap();
    fs::remove_dir(at("copy/lost+found")).unwrap();
    let (is_same, differs) = run(Command::new("diff").arg("-r").args([at("expected"), at("copy")]));
    assert!(is_same, "{differs}");
    let names = |tree: &Path| {
        let facts = ["-mindepth", "1", "-printf", "%P %y %m %n %l %T@\n"];
        let mut lines: Vec<_> =
            run(Command::new("find").arg(tree).args(facts)).1.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(names(&at("expected")), names(&at("copy")));
    let (is_clean, found) = run(Command::new("e2fsck").arg("-fn").arg(&image));
    assert!(is_clean, "{found}");
}

/// Tries to lock an image at each open of a volume.
struct Rival(std::path::PathBuf, Arc<Mutex<Vec<bool>>>);

impl Caller for Rival {
    fn print(&self, _: &str) {}
    fn say(&self, _: &str) -> io::Result<()> {
        Ok(())
    }
    fn show_progress(&self) -> Option<Arc<dyn Bar>> {
        None
    }
    fn catch_signals(&self) {}
    fn open(
        &self,
        location: &Location,
        options: &ironmap::VolumeOptions,
    ) -> ironmap::Result<ironmap::Volume> {
        let mode = ironmap::device::OpenMode::default();
        let locked = ironmap::device::BlockFile::open(&self.0, &mode).is_err();
        self.1.lock().unwrap().push(locked);
        options.open(location)
    }
}

/// A build locks an existing image before it extends the image, and keeps the lock until the end of the copy, including between the steps.
#[test]
fn an_image_is_locked_between_the_steps_of_a_build() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, image) = (dir.path().join("tree"), dir.path().join("disk.img"));
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), "content").unwrap();
    fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let opens = Arc::default();
    let rival = Box::new(Rival(image.clone(), Arc::clone(&opens)));
    let context = Context::new(rival, Stop::default(), Opening::default(), Ok(None));
    let location = Location::parse(image.as_os_str()).unwrap();
    let made = Image::ext4().size(32 << 20).add(&tree);
    made.build_with(&location, &mut Report::new(context)).unwrap();
    assert_eq!(*opens.lock().unwrap(), [true]);
    // The locks end with the build.
    Image::open(&image).unwrap().resize(ironmap::NewSize::Minimum).unwrap();
}

/// Replaces an image, when a volume is opened, with a copy of the image.
struct Replacer(std::path::PathBuf);

impl Caller for Replacer {
    fn print(&self, _: &str) {}
    fn say(&self, _: &str) -> io::Result<()> {
        Ok(())
    }
    fn show_progress(&self) -> Option<Arc<dyn Bar>> {
        None
    }
    fn catch_signals(&self) {}
    fn open(
        &self,
        location: &Location,
        options: &ironmap::VolumeOptions,
    ) -> ironmap::Result<ironmap::Volume> {
        let other = self.0.with_extension("other");
        fs::copy(&self.0, &other).unwrap();
        fs::copy(&self.0, self.0.with_extension("before")).unwrap();
        fs::rename(other, &self.0).unwrap();
        options.open(location)
    }
}

/// The lock of an image applies to one file. If another file gets the name of the image, the later steps fail and do not write to this
/// file.
#[test]
fn a_file_that_replaces_a_held_image_is_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, image) = (dir.path().join("tree"), dir.path().join("disk.img"));
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), "content").unwrap();
    fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let location = Location::parse(image.as_os_str()).unwrap();
    let context = |caller| Context::new(caller, Stop::default(), Opening::default(), Ok(None));

    // The volume is opened after the image was extended and the volume was made.
    let replacing = context(Box::new(Replacer(image.clone())));
    let made = Image::ext4().size(32 << 20).add(&tree);
    let failure = made.build_with(&location, &mut Report::new(replacing)).unwrap_err();
    assert!(failure.to_string().contains("replaced by another file"), "{failure}");
    assert!(fs::read(&image).unwrap() == fs::read(dir.path().join("disk.before")).unwrap());

    // These steps change the length of an image, and open the device.
    let messages = context(Box::<Messages>::default());
    let held = messages.hold(&location).unwrap();
    let other = dir.path().join("other.img");
    fs::write(&other, vec![0; 1 << 20]).unwrap();
    fs::rename(&other, &image).unwrap();
    let (file, overwrite) = ((&*image, Format::Raw), Overwrite::Members);
    assert!(room::make(&location, file, 32 << 20, overwrite, &messages).is_err());
    let how = ironmap::location::LocationOptions::new().write(true);
    let error = messages.open_device(&location, &how).unwrap_err();
    assert!(error.to_string().contains("replaced by another file"), "{error}");
    assert_eq!(fs::metadata(&image).unwrap().len(), 1 << 20);
    drop(held);
    messages.open_device(&location, &how).unwrap();
}
