//! The store for object_store 0.13.

pub(crate) use object_store_0_13 as object_store;

#[allow(clippy::duplicate_mod, reason = "each version compiles the file with its own types")]
#[path = "glue.rs"]
mod glue;

use object_store::{
    Attributes, GetResult, GetResultPayload, ListResult, ObjectMeta, PutResult, path::Path,
};

fn put_result(e_tag: String) -> PutResult {
    PutResult { e_tag: Some(e_tag), version: None }
}

fn get_result(
    payload: GetResultPayload,
    meta: ObjectMeta,
    range: std::ops::Range<u64>,
) -> GetResult {
    GetResult { payload, meta, range, attributes: Attributes::default() }
}

fn list_result(common_prefixes: Vec<Path>, objects: Vec<ObjectMeta>) -> ListResult {
    ListResult { common_prefixes, objects }
}
