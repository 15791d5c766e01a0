//! Shared data and shared queues, with the rules of proxy-wasm-cpp-host.

use crate::Status;
use std::collections::{BTreeMap, VecDeque};

type Space = BTreeMap<Vec<u8>, (Vec<u8>, u32)>;

/// The one map of the process. Every `vm_id` is a name space of its own.
#[derive(Debug, Default)]
pub(crate) struct SharedData {
    spaces: BTreeMap<String, Space>,
    last_cas: u32,
}

impl SharedData {
    pub(crate) fn get(&self, vm_id: &str, key: &[u8]) -> Option<(&[u8], u32)> {
        let (value, cas) = self.spaces.get(vm_id)?.get(key)?;
        Some((value, *cas))
    }

    /// `cas` 0 asks for no comparison, and a missing key takes any `cas`: there is no
    /// create-if-absent in Envoy.
    pub(crate) fn set(
        &mut self,
        vm_id: &str,
        key: &[u8],
        value: &[u8],
        cas: u32,
    ) -> Result<(), Status> {
        let next = self.next_cas();
        let space = self.spaces.entry(vm_id.to_string()).or_default();
        match space.get_mut(key) {
            Some((_, stored)) if cas != 0 && cas != *stored => return Err(Status::CasMismatch),
            Some(slot) => *slot = (value.to_vec(), next),
            None => {
                space.insert(key.to_vec(), (value.to_vec(), next));
            }
        }
        self.last_cas = next;
        Ok(())
    }

    pub(crate) fn keys(&self, vm_id: &str) -> Vec<Vec<u8>> {
        self.spaces.get(vm_id).map(|space| space.keys().cloned().collect()).unwrap_or_default()
    }

    /// One counter for the whole map; it wraps and skips 0, which means "do not compare".
    fn next_cas(&self) -> u32 {
        self.last_cas.checked_add(1).unwrap_or(1)
    }

    /// Puts the counter where a test wants it, for instance just before it wraps.
    pub(crate) fn set_last_cas(&mut self, last: u32) {
        self.last_cas = last;
    }
}

/// Shared queues. Nobody is told that an item has come (`on_queue_ready` is not called).
#[derive(Debug, Default)]
pub(crate) struct Queues {
    tokens: BTreeMap<(String, Vec<u8>), u32>,
    items: BTreeMap<u32, VecDeque<Vec<u8>>>,
}

impl Queues {
    pub(crate) fn register(&mut self, vm_id: &str, name: &[u8]) -> u32 {
        let next = self.tokens.len() as u32 + 1;
        let token = *self.tokens.entry((vm_id.to_string(), name.to_vec())).or_insert(next);
        self.items.entry(token).or_default();
        token
    }

    pub(crate) fn resolve(&self, vm_id: &str, name: &[u8]) -> Result<u32, Status> {
        let key = (vm_id.to_string(), name.to_vec());
        self.tokens.get(&key).copied().ok_or(Status::NotFound)
    }

    pub(crate) fn enqueue(&mut self, token: u32, item: &[u8]) -> Result<(), Status> {
        self.items.get_mut(&token).ok_or(Status::NotFound)?.push_back(item.to_vec());
        Ok(())
    }

    pub(crate) fn dequeue(&mut self, token: u32) -> Result<Vec<u8>, Status> {
        self.items.get_mut(&token).ok_or(Status::NotFound)?.pop_front().ok_or(Status::Empty)
    }
}
