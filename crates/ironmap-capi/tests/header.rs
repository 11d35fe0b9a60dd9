//! The header `include/ironmap.h` is the one that cbindgen makes from the sources. `IRONMAP_HEADER=write` writes it.

use std::fs;
use std::path::Path;

#[test]
fn the_header_is_that_of_the_sources() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(dir.join("cbindgen.toml")).unwrap();
    let bindings = cbindgen::Builder::new().with_crate(dir).with_config(config).generate().unwrap();
    let mut made = Vec::new();
    bindings.write(&mut made);
    // In Rust, the section "Safety" contains the duties of the caller. In the header, this section is named "Requires".
    let made = String::from_utf8(made).unwrap().replace("// # Safety\n", "// Requires:\n");
    let path = dir.join("include/ironmap.h");
    if std::env::var_os("IRONMAP_HEADER").is_some_and(|what| what == "write") {
        fs::write(&path, &made).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    let differs = kept.lines().zip(made.lines()).position(|(kept, made)| kept != made);
    assert!(
        kept == made,
        "line {differs:?} of {} differs: run IRONMAP_HEADER=write cargo test -p ironmap-capi --test header",
        path.display()
    );
}
