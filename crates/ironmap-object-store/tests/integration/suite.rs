//! Runs the tests of object_store itself. The module of each version compiles this file.

use std::sync::Arc;

use ironmap::device::Ram;
use ironmap::fs::ext4::MkfsOptions;
use ironmap::{Host, HostOptions, VolumeOptions};
use ironmap_object_store::{Store, StoreOptions};
use tempfile::TempDir;

use super::object_store::integration;

/// A store, and the temporary directory that it needs.
struct Stand {
    store: Store,
    _dir: Option<TempDir>,
}

fn on_a_volume() -> Stand {
    let ram = Arc::new(Ram::new(256 << 20));
    ironmap::tools::make(&*ram, &MkfsOptions::new()).unwrap();
    let volume = VolumeOptions::new().write(true).open_on(ram).unwrap();
    Stand { store: Store::volume(volume, &StoreOptions::new()).unwrap(), _dir: None }
}

fn in_a_directory() -> Stand {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::new(&HostOptions::new()).unwrap();
    let store = Store::directory(host, dir.path(), &StoreOptions::new()).unwrap();
    Stand { store, _dir: Some(dir) }
}

/// Defines a test that runs one test of object_store on both kinds of stores.
macro_rules! passes {
    ($name:ident, |$store:ident| $test:expr) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            for stand in [on_a_volume(), in_a_directory()] {
                let $store = &stand.store;
                $test.await;
            }
        }
    };
}

passes!(put_get_delete_list, |store| integration::put_get_delete_list(store));
passes!(get_opts, |store| integration::get_opts(store));
passes!(put_opts, |store| integration::put_opts(store, true));
// Attributes are not supported, and the test accepts this refusal.
passes!(put_get_attributes, |store| integration::put_get_attributes(store));
passes!(stream_get, |store| integration::stream_get(store));
passes!(list_uses_directories_correctly, |store| integration::list_uses_directories_correctly(
    store
));
passes!(list_with_delimiter, |store| integration::list_with_delimiter(store));
passes!(list_with_offset_exclusivity, |store| integration::list_with_offset_exclusivity(store));
passes!(get_nonexistent_object, |store| async {
    let failed = integration::get_nonexistent_object(store, None).await.unwrap_err();
    assert!(matches!(failed, super::object_store::Error::NotFound { .. }), "{failed}");
});
passes!(rename_and_copy, |store| integration::rename_and_copy(store));
passes!(copy_if_not_exists, |store| integration::copy_if_not_exists(store));
passes!(copy_rename_nonexistent_object, |store| integration::copy_rename_nonexistent_object(store));
passes!(multipart_race_condition, |store| integration::multipart_race_condition(store, true));
passes!(multipart_out_of_order, |store| integration::multipart_out_of_order(store));
