//! Tests on devices that few machines have: NVMe namespaces, polled queues, protection information, atomic writes. They run only in the
//! guest of `./x lab`, whose job (lab/test.sh) makes the devices, and never on a machine's own devices.

#[path = "../common/mod.rs"]
mod common;
mod host;
mod nvme;
mod polled;
mod protection;
mod reads;
mod writes;

/// The value that the guest's job passed under this name: a device's path, or the path of a file.
fn given(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("no {name}: these tests run by ./x lab"))
}
