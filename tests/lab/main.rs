//! Tests on devices that few machines have: NVMe namespaces, polled queues, protection information, atomic writes. `./x lab` runs these
//! tests in its virtual machine, where lab/test.sh makes the devices. The tests never use devices of the host.

#[path = "../common/mod.rs"]
mod common;
mod host;
mod nvme;
mod polled;
mod protection;
mod reads;
mod writes;

/// A value that lab/test.sh passed in an environment variable: the path of a device or of a file.
fn given(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("no {name}: these tests run by ./x lab"))
}
