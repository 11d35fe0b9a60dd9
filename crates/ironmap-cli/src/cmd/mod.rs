//! One module a subcommand: its arguments, its help, and `run`.

pub(crate) mod cat;
pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod cp;
pub(crate) mod demo;
pub(crate) mod host;
pub(crate) mod info;
pub(crate) mod ls;
pub(crate) mod man;
pub(crate) mod map;
pub(crate) mod mkfs;
pub(crate) mod stat;
