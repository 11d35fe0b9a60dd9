//! A table of items in flight. Each item has an index. After an item is removed, its index can be reused for another item.

/// A table of items, each with an index.
pub(in crate::dio) struct Slab<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(in crate::dio) fn is_empty(&self) -> bool {
        self.slots.len() == self.free.len()
    }

    /// The items in the table.
    pub(in crate::dio) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().flatten()
    }

    pub(in crate::dio) fn insert(&mut self, item: T) -> u32 {
        if let Some(index) = self.free.pop() {
            self.slots[index as usize] = Some(item);
            return index;
        }
        self.slots.push(Some(item));
        self.slots.len() as u32 - 1
    }

    #[inline]
    pub(in crate::dio) fn get(&self, index: u32) -> Option<&T> {
        self.slots.get(index as usize)?.as_ref()
    }

    pub(in crate::dio) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.slots.get_mut(index as usize)?.as_mut()
    }

    pub(in crate::dio) fn remove(&mut self, index: u32) -> Option<T> {
        let item = self.slots.get_mut(index as usize)?.take()?;
        self.free.push(index);
        Some(item)
    }
}
