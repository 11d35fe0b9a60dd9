//! Checks that the example does what its first comment says. The oracle is the content that was written.

use std::process::Command;

use ironmap::VolumeOptions;
use ironmap::fs::ext4::MkfsOptions;

/// The example reads an empty file, and a whole file whose last block is incomplete.
#[test]
fn the_example_reads_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    std::fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    let device = ironmap::tools::device(&*image).unwrap();
    ironmap::tools::make(&*device, &MkfsOptions::new()).unwrap();
    drop(device);
    let volume = VolumeOptions::new().write(true).open(&*image).unwrap();
    let data: Vec<u8> = (0..700_000_u32).map(|at| (at / 7) as u8).collect();
    volume.write("/data", &data).unwrap();
    volume.write("/empty", b"").unwrap();
    volume.close().unwrap();
    drop(volume);
    // Cargo builds the examples of a package before it runs the tests. The examples are in a directory next to the test programs.
    let own = std::env::current_exe().unwrap();
    let program = own.ancestors().nth(2).unwrap().join("examples/tokio_reader");
    for (path, content) in [("/data", &data[..]), ("/empty", &[])] {
        let output = Command::new(&program).arg(&image).arg(path).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let sum: u64 = content.iter().map(|byte| u64::from(*byte)).sum();
        let text = String::from_utf8(output.stdout).unwrap();
        let expected = format!(
            "sum of all bytes: {sum}\n{} reads of 4096 bytes, ",
            content.len().div_ceil(4096)
        );
        assert!(text.starts_with(&expected), "{text}");
    }
}
