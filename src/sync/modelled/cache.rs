//! A replacement for quick_cache. The model checker cannot control quick_cache's own locks. Like quick_cache, the replacement may evict any
//! value at any time.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use shuttle::rand::{Rng, thread_rng};

use super::{Condvar, Mutex};

/// On average, one of this many lookups first removes the value that it looks for, as an eviction would.
const EVICTED: u32 = 4;

pub(crate) struct Cache<K, V> {
    entries: Mutex<HashMap<K, Entry<V>>>,
    loaded: Condvar,
}

enum Entry<V> {
    Resident(V),
    Loading(Load<V>),
}

/// A load of a value that is in progress. Threads that wait for this load get its value, even if another thread has inserted or removed the
/// entry in the meantime.
type Load<V> = Arc<Mutex<Loaded<V>>>;

enum Loaded<V> {
    Not,
    Failed,
    Value(V),
}

impl<K: Hash + Eq + Clone, V: Clone> Cache<K, V> {
    pub(crate) fn new(_capacity: usize) -> Self {
        Self { entries: Mutex::default(), loaded: Condvar::new() }
    }

    pub(crate) fn clear(&self) {
        self.entries.lock().clear();
    }

    pub(crate) fn get(&self, key: &K) -> Option<V> {
        let mut entries = self.entries.lock();
        evict(&mut entries, key);
        match entries.get(key) {
            Some(Entry::Resident(value)) => Some(value.clone()),
            _ => None,
        }
    }

    /// Inserts a value. If this key is being loaded, the cache will not store the loaded value.
    pub(crate) fn insert(&self, key: K, value: V) {
        self.entries.lock().insert(key, Entry::Resident(value));
    }

    /// Removes a value. If this key is being loaded, the cache will not store the loaded value.
    pub(crate) fn remove(&self, key: &K) {
        self.entries.lock().remove(key);
    }

    pub(crate) fn get_or_insert_with<E>(
        &self,
        key: &K,
        load: impl FnOnce() -> Result<V, E>,
    ) -> Result<V, E> {
        let mut entries = self.entries.lock();
        evict(&mut entries, key);
        loop {
            let other = match entries.get(key) {
                Some(Entry::Resident(value)) => return Ok(value.clone()),
                Some(Entry::Loading(other)) => Arc::clone(other),
                None => break,
            };
            loop {
                match &*other.lock() {
                    Loaded::Value(value) => return Ok(value.clone()),
                    Loaded::Failed => break,
                    Loaded::Not => {}
                }
                self.loaded.wait(&mut entries);
            }
        }
        let own = Arc::new(Mutex::new(Loaded::Not));
        entries.insert(key.clone(), Entry::Loading(Arc::clone(&own)));
        drop(entries);

        let result = load();
        let mut entries = self.entries.lock();
        let kept =
            matches!(entries.get(key), Some(Entry::Loading(load)) if Arc::ptr_eq(load, &own));
        match &result {
            Ok(value) => {
                *own.lock() = Loaded::Value(value.clone());
                if kept {
                    entries.insert(key.clone(), Entry::Resident(value.clone()));
                }
            }
            Err(_) => {
                *own.lock() = Loaded::Failed;
                if kept {
                    entries.remove(key);
                }
            }
        }
        self.loaded.notify_all();
        result
    }
}

fn evict<K: Hash + Eq, V>(entries: &mut HashMap<K, Entry<V>>, key: &K) {
    let resident = matches!(entries.get(key), Some(Entry::Resident(_)));
    if resident && thread_rng().gen_ratio(1, EVICTED) {
        entries.remove(key);
    }
}
