//! One module a subcommand: its arguments, its help, and `run`.

pub(crate) mod cat;
pub(crate) mod chattr;
pub(crate) mod check;
pub(crate) mod chmod;
pub(crate) mod chown;
pub(crate) mod completions;
pub(crate) mod cp;
pub(crate) mod demo;
pub(crate) mod fallocate;
pub(crate) mod host;
pub(crate) mod info;
pub(crate) mod integrity;
pub(crate) mod ln;
pub(crate) mod ls;
pub(crate) mod man;
pub(crate) mod map;
pub(crate) mod mkdir;
pub(crate) mod mkfs;
pub(crate) mod mv;
pub(crate) mod rm;
pub(crate) mod rmdir;
pub(crate) mod setfattr;
pub(crate) mod stat;
pub(crate) mod sync;
pub(crate) mod touch;
pub(crate) mod truncate;
