//! The geometry of a FAT file system: its type (FAT12, FAT16 or FAT32), the cluster size, and the positions of its parts.

use super::tree::Dir;

/// The types of FAT. The number is the size in bits of an entry in the allocation table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Fat12,
    Fat16,
    Fat32,
}

impl Kind {
    pub(super) fn bits(self) -> u64 {
        match self {
            Self::Fat12 => 12,
            Self::Fat16 => 16,
            Self::Fat32 => 32,
        }
    }

    /// Returns the minimum and maximum number of clusters for each type of FAT. The number of clusters determines the type. Microsoft's
    /// specification recommends a distance of 16 from the bounds, because some programs compute the bounds wrongly.
    fn clusters(self) -> std::ops::RangeInclusive<u64> {
        match self {
            Self::Fat12 => 1..=4084 - 16,
            Self::Fat16 => 4085 + 16..=65524 - 16,
            Self::Fat32 => 65525 + 16..=0x0FFF_FFF4 - 16,
        }
    }
}

/// The geometry. Positions and lengths are in sectors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Geometry {
    pub(super) kind: Kind,
    /// The sector size in bytes.
    pub(super) sector: u64,
    pub(super) total: u64,
    pub(super) cluster: u64,
    /// The sectors before the first table.
    pub(super) reserved: u64,
    /// The length of each of the two tables.
    pub(super) table: u64,
    /// The number of entries in the root directory; 0 with FAT32, whose root directory is in clusters.
    pub(super) root_slots: u64,
    pub(super) clusters: u64,
}

/// The largest cluster in bytes that all systems support.
const MAX_CLUSTER: u64 = 32 << 10;

impl Geometry {
    /// Creates the geometry for a range of `size` bytes, with at least `root_slots` entries in the root directory. FAT32 is used if
    /// possible, because firmware expects it on an ESP. Returns `None` if the size or the number of entries is not possible.
    pub(super) fn new(size: u64, sector: u64, root_slots: u64) -> Option<Self> {
        let of = |kind, cluster| {
            Self::with(kind, size, sector, cluster, root_slots)
                .filter(|geometry| kind.clusters().contains(&geometry.clusters))
        };
        let usual = match size >> 20 {
            0..260 => sector,
            260..8192 => 4 << 10,
            8192..16384 => 8 << 10,
            16384..32768 => 16 << 10,
            _ => MAX_CLUSTER,
        };
        let small = || (0..7).map(|bits| sector << bits).filter(|cluster| *cluster <= MAX_CLUSTER);
        of(Kind::Fat32, usual.max(sector))
            .or_else(|| small().find_map(|cluster| of(Kind::Fat16, cluster)))
            .or_else(|| small().find_map(|cluster| of(Kind::Fat12, cluster)))
    }

    fn with(kind: Kind, size: u64, sector: u64, cluster: u64, root_slots: u64) -> Option<Self> {
        let total = size / sector;
        u32::try_from(total).ok()?;
        let root_slots = match kind {
            Kind::Fat32 => 0,
            _ => root_slots.max(512).next_multiple_of(sector / 32),
        };
        u16::try_from(root_slots).ok()?;
        let (root, cluster) = (root_slots * 32 / sector, cluster / sector);
        let first = if kind == Kind::Fat32 { 32 } else { 1 };
        // The length of a table is computed for all sectors after the root directory, although the tables themselves occupy some of them,
        // so the table is long enough.
        let most = total.checked_sub(first + root)? / cluster;
        let table = ((most + 2) * kind.bits()).div_ceil(8 * sector);
        // The first cluster is aligned to 4096 bytes, and to the cluster size.
        let unit = cluster.max(4096 / sector);
        let reserved = (first + 2 * table + root).next_multiple_of(unit) - 2 * table - root;
        let clusters = total.checked_sub(reserved + 2 * table + root)? / cluster;
        Some(Self { kind, sector, total, cluster, reserved, table, root_slots, clusters })
    }

    /// Returns the cluster size in bytes.
    pub(super) fn cluster_bytes(&self) -> u64 {
        self.cluster * self.sector
    }

    /// Returns the position of the root directory of FAT12 and FAT16 in bytes.
    pub(super) fn root_at(&self) -> u64 {
        (self.reserved + 2 * self.table) * self.sector
    }

    /// Returns the position of a cluster in bytes. The first cluster has number 2.
    pub(super) fn at(&self, cluster: u32) -> u64 {
        self.root_at() + self.root_slots * 32 + (u64::from(cluster) - 2) * self.cluster_bytes()
    }

    /// Returns the number of clusters that the files need. The root directory also contains the label.
    pub(super) fn needs(&self, root: &Dir) -> u64 {
        let cluster = self.cluster_bytes();
        let own = if self.kind == Kind::Fat32 { root.clusters(cluster) } else { 0 };
        own + root.clusters_below(cluster)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For each size starting at 64 KiB, all parts of the geometry are within the size.
    #[test]
    fn every_size_has_a_geometry() {
        for sector in [512, 4096] {
            for size in (16..1200).map(|step| step << 12).chain((1..3000).map(|mib| mib << 20)) {
                let found = Geometry::new(size, sector, 1);
                let geometry = found.unwrap_or_else(|| panic!("{size} bytes, sectors of {sector}"));
                let end = geometry.at(2) + geometry.clusters * geometry.cluster_bytes();
                assert!(end <= size, "{size}: {geometry:?}");
                assert!(
                    (geometry.clusters + 2) * geometry.kind.bits() <= geometry.table * sector * 8
                );
                assert_eq!(geometry.at(2) % 4096, 0, "{geometry:?}");
            }
            assert!(Geometry::new(8192, sector, 1).is_none());
            assert!(Geometry::new(u64::from(u32::MAX) * sector + sector, sector, 1).is_none());
        }
        assert_eq!(Geometry::new(64 << 20, 512, 1).unwrap().kind, Kind::Fat32);
        assert_eq!(Geometry::new(32 << 20, 512, 1).unwrap().kind, Kind::Fat16);
        assert_eq!(Geometry::new(1 << 20, 512, 1).unwrap().kind, Kind::Fat12);
    }
}
