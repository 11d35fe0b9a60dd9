//! Faults that xfs_repair reports and `check` does not report. Each has a reason.

/// A part of xfs_repair's output, and the reason why `check` does not report it.
pub(crate) struct Difference {
    text: &'static str,
    reason: &'static str,
}

pub(crate) const REPAIR_ALONE: &[Difference] = &[Difference {
    text: "is INCOMPLETE",
    reason: "a crash can leave such an attribute, and Linux passes over it: a note",
}];

pub(crate) fn reason(list: &[Difference], text: &str) -> Option<&'static str> {
    list.iter().find(|difference| text.contains(difference.text)).map(|found| found.reason)
}
