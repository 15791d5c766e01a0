//! What workers tell each other.
//!
//! Every worker that serves requests owns one *part*: a small fixed-layout
//! record with what it learned. It publishes the part on its ticks and reads
//! the parts of the others. A part whose owner shows no heartbeat for
//! [`STALE`] is taken over with its content, so a dead worker's learning lives
//! on and the number of parts stays bounded.
//!
//! The set of parts is a join semilattice: [`View::merge`] keeps the newer
//! version of each part, so it is commutative, associative and idempotent, and
//! lost or repeated exchanges do no harm.

use crate::bytes::{take, take_u64};
use crate::estimate::{Learned, Learner, hash};
use crate::time::{Instant, Span};
use std::collections::BTreeMap;

/// Workers that can publish at a time.
pub const PARTS_MAX: u32 = 256;
/// A part without a heartbeat for so long is free to be taken over.
pub const STALE: Span = Span::from_secs(30);

const MAGIC: u32 = u32::from_le_bytes(*b"TGpt");
/// Part of the slot's name as well, so that builds of different layouts do
/// not touch each other's parts.
const LAYOUT: u32 = 2;

/// Memory that workers share: named slots that change atomically.
pub trait Slots {
    /// Runs `change` on the slot's content (`None` if the slot does not exist)
    /// and stores what it returns, unless that is `None`. If another worker
    /// wrote in between, `change` runs again on the new content.
    fn update(&mut self, name: &str, change: &mut Change<'_>) -> Updated;
}

/// No memory: for drivers with one worker and no limits.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSlots;

impl Slots for NoSlots {
    fn update(&mut self, _name: &str, _change: &mut Change<'_>) -> Updated {
        Updated::Failed
    }
}

/// Memory of one thread, for drivers whose workers take turns: simulators and
/// tests. Nothing in it is ever contended.
#[derive(Clone, Debug, Default)]
pub struct LocalSlots(pub BTreeMap<String, Vec<u8>>);

impl Slots for LocalSlots {
    fn update(&mut self, name: &str, change: &mut Change<'_>) -> Updated {
        if let Some(content) = self.0.get_mut(name) {
            if let Some(new) = change(Some(content)) {
                *content = new;
            }
        } else if let Some(new) = change(None) {
            self.0.insert(name.to_owned(), new);
        }
        Updated::Done
    }
}

/// A slot's content (`None` if the slot does not exist) becomes its new
/// content (`None` to leave it alone). May run several times.
pub type Change<'a> = dyn FnMut(Option<&[u8]>) -> Option<Vec<u8>> + 'a;

/// What became of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Updated {
    /// Done: the content is what `change` last returned, or unchanged.
    Done,
    /// Others wrote each time; nothing was stored.
    Busy,
    /// The memory does not work.
    Failed,
}

/// One worker's published state.
#[derive(Clone, Debug)]
pub struct Part {
    /// The instance, as a hash of its name.
    instance: u64,
    /// The incarnation of the worker that owns the part.
    owner: u64,
    /// Grows with each publication, also across owners.
    version: u64,
    heartbeat: Instant,
    learned: Learned,
}

impl Part {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(MAGIC.to_le_bytes());
        bytes.extend(LAYOUT.to_le_bytes());
        bytes.extend(self.instance.to_le_bytes());
        bytes.extend(self.owner.to_le_bytes());
        bytes.extend(self.version.to_le_bytes());
        bytes.extend(self.heartbeat.as_nanos().to_le_bytes());
        self.learned.encode(&mut bytes);
        bytes
    }

    /// `None` if the bytes are not a part of this layout.
    fn decode(mut bytes: &[u8]) -> Option<Self> {
        let rest = &mut bytes;
        if u32::from_le_bytes(take(rest)?) != MAGIC || u32::from_le_bytes(take(rest)?) != LAYOUT {
            return None;
        }
        let instance = take_u64(rest)?;
        let owner = take_u64(rest)?;
        let version = take_u64(rest)?;
        let heartbeat = Instant::from_nanos(take_u64(rest)?);
        let learned = Learned::decode(rest)?;
        Some(Self { instance, owner, version, heartbeat, learned })
    }

    fn stale(&self, now: Instant) -> bool {
        // Also a heartbeat from far ahead: its clock is not ours.
        now.since(self.heartbeat) > STALE || self.heartbeat.since(now) > STALE
    }
}

/// The newest known version of every part.
#[derive(Clone, Debug, Default)]
pub struct View(BTreeMap<u32, Part>);

impl View {
    /// Takes over what the other view has newer. Commutative, associative and
    /// idempotent. Returns whether anything was newer.
    pub fn merge(&mut self, other: &Self) -> bool {
        let mut changed = false;
        for (place, part) in &other.0 {
            changed |= self.put(*place, part.clone());
        }
        changed
    }

    fn put(&mut self, place: u32, part: Part) -> bool {
        let rank = |part: &Part| (part.version, part.owner);
        let newer = self.0.get(&place).is_none_or(|known| rank(known) < rank(&part));
        if newer {
            self.0.insert(place, part);
        }
        newer
    }
}

/// One worker's side of the exchange.
#[derive(Debug)]
pub struct Exchange {
    instance: u64,
    incarnation: u64,
    /// The part that is ours.
    ours: Option<u32>,
    /// The newest version that we wrote or saw, so that what we write next is
    /// newer for everybody.
    newest: u64,
    view: View,
}

impl Exchange {
    /// For a worker of the instance of this name. `incarnation` must differ
    /// between all workers of a process, dead ones included.
    pub fn new(name: &str, incarnation: u64) -> Self {
        Self {
            instance: hash(name.as_bytes()),
            incarnation,
            ours: None,
            newest: 0,
            view: View::default(),
        }
    }

    /// Exchanges with the other workers; to be called every second or so.
    /// A worker that has not served a request yet (`serving` false) only reads:
    /// the main thread's VM never takes a part.
    pub fn tick(
        &mut self,
        now: Instant,
        slots: &mut impl Slots,
        learner: &mut Learner,
        decay: f64,
        serving: bool,
    ) {
        if serving && self.ours.is_none() {
            self.claim(now, slots, learner, decay);
        }
        self.publish(now, slots, learner);
        self.read(slots, learner, decay);
    }

    /// Whether another worker of this incarnation shows a heartbeat.
    pub fn alive(&self, now: Instant, incarnation: u64) -> bool {
        self.view.0.values().any(|part| part.owner == incarnation && !part.stale(now))
    }

    /// Whether this worker is the first of all that live: one of them does what
    /// needs to be done once.
    pub fn is_first(&self, now: Instant) -> bool {
        self.ours.is_some_and(|ours| self.view.0.range(..ours).all(|(_, part)| part.stale(now)))
    }

    /// Takes the first part that is free or whose owner is dead.
    fn claim(&mut self, now: Instant, slots: &mut impl Slots, learner: &mut Learner, decay: f64) {
        let (instance, owner) = (self.instance, self.incarnation);
        for place in 0..PARTS_MAX {
            let newest = self.newest;
            let mut found = None;
            let updated = slots.update(&self.name(place), &mut |bytes| {
                let part = bytes.and_then(Part::decode);
                let free = part.as_ref().is_none_or(|p| p.instance == instance && p.stale(now));
                let version = part.as_ref().map_or(0, |part| part.version).max(newest) + 1;
                let learned = part.map(|part| part.learned).unwrap_or_default();
                let claimed = Part { instance, owner, version, heartbeat: now, learned };
                let bytes = free.then(|| claimed.encode());
                found = free.then_some(claimed);
                bytes
            });
            if updated != Updated::Done {
                return;
            }
            if let Some(part) = found {
                self.ours = Some(place);
                self.newest = part.version;
                self.view.0.remove(&place);
                learner.adopt(Learned::blend([learner.own(), &part.learned].into_iter(), decay));
                // What was a peer's is our own now, and counts once.
                self.tell(learner, decay);
                return;
            }
        }
    }

    fn publish(&mut self, now: Instant, slots: &mut impl Slots, learner: &mut Learner) {
        let Some(place) = self.ours else { return };
        let (instance, owner, version) = (self.instance, self.incarnation, self.newest + 1);
        let (mut lost, mut inherited) = (false, false);
        let updated = slots.update(&self.name(place), &mut |bytes| {
            // Another worker may have claimed it at the same moment, or taken
            // it over while we slept; or something else was written there.
            let part = bytes.and_then(Part::decode);
            lost = part.as_ref().is_none_or(|part| part.owner != owner);
            inherited = lost && part.is_some_and(|part| part.instance == instance);
            let learned = learner.own().clone();
            let part = Part { instance, owner, version, heartbeat: now, learned };
            (!lost).then(|| part.encode())
        });
        match updated {
            Updated::Done if lost => {
                self.ours = None;
                // Its heir has what we published; it would count twice.
                if inherited {
                    learner.adopt(Learned::default());
                }
            }
            Updated::Done => self.newest = version,
            Updated::Busy | Updated::Failed => {}
        }
    }

    fn read(&mut self, slots: &mut impl Slots, learner: &mut Learner, decay: f64) {
        let mut seen = View::default();
        for place in 0..PARTS_MAX {
            if self.ours == Some(place) {
                continue;
            }
            let (mut exists, mut part) = (false, None);
            let updated = slots.update(&self.name(place), &mut |bytes| {
                exists = bytes.is_some();
                part = bytes.and_then(Part::decode);
                None
            });
            // Parts are claimed from the first on, so a gap is the end.
            if updated != Updated::Done || !exists {
                break;
            }
            if let Some(part) = part.filter(|part| part.instance == self.instance) {
                self.newest = self.newest.max(part.version);
                seen.put(place, part);
            }
        }
        if self.view.merge(&seen) {
            self.tell(learner, decay);
        }
    }

    fn tell(&self, learner: &mut Learner, decay: f64) {
        let parts = self.view.0.values().map(|part| &part.learned);
        learner.set_peers(Learned::blend(parts, decay));
    }

    fn name(&self, place: u32) -> String {
        format!("tidegate.{LAYOUT}.{:016x}.part.{place}", self.instance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TenantClass;
    use crate::estimate::{Class, Key, Settings, Tally};
    use proptest::prelude::*;

    #[derive(Default)]
    struct Memory {
        slots: BTreeMap<String, Vec<u8>>,
        busy: bool,
    }

    impl Slots for Memory {
        fn update(&mut self, name: &str, change: &mut Change<'_>) -> Updated {
            let new = change(self.slots.get(name).map(Vec::as_slice));
            match new {
                Some(_) if self.busy => return Updated::Busy,
                Some(new) => self.slots.insert(name.to_owned(), new),
                None => None,
            };
            Updated::Done
        }
    }

    struct Worker(Exchange, Learner);

    impl Worker {
        fn new(incarnation: u64) -> Self {
            Self(Exchange::new("tidegate", incarnation), Learner::default())
        }

        fn tick(&mut self, second: u64, memory: &mut Memory) {
            self.0.tick(at(second), memory, &mut self.1, 0.95, true);
        }

        fn teach(&mut self, second: u64, tokens: u64) {
            let (settings, model) = (Settings::default(), Key::model(b"m"));
            self.1.learn(at(second), &settings, model, &Tally::of(Class::Tools, 6000), 0, tokens);
        }

        fn ratio(&mut self) -> f64 {
            let text = Tally::of(Class::Tools, 6000);
            6000.0 / self.1.estimate(&Settings::default(), Key::model(b"m"), &text, 0).mean
        }
    }

    fn at(second: u64) -> Instant {
        Instant::default() + Span::from_secs(second)
    }

    #[test]
    fn what_one_worker_learns_the_others_know() {
        let (mut memory, mut a, mut b) = (Memory::default(), Worker::new(1), Worker::new(2));
        for second in 0..30 {
            a.teach(second, 3000);
        }
        a.tick(30, &mut memory);
        b.tick(30, &mut memory);
        assert!((b.ratio() - 2.0).abs() < 0.01, "{}", b.ratio());
        assert_eq!(memory.slots.len(), 2);
    }

    #[test]
    fn a_worker_that_serves_nothing_takes_no_part() {
        let (mut memory, mut main) = (Memory::default(), Worker::new(9));
        main.0.tick(at(1), &mut memory, &mut main.1, 0.95, false);
        assert!(memory.slots.is_empty());
    }

    #[test]
    fn a_dead_workers_part_is_taken_over_with_its_content() {
        let (mut memory, mut a, mut b) = (Memory::default(), Worker::new(1), Worker::new(2));
        for second in 0..30 {
            a.teach(second, 3000);
        }
        a.tick(30, &mut memory);
        b.tick(61, &mut memory);
        assert_eq!(memory.slots.len(), 1, "b took a's part");
        assert!((b.ratio() - 2.0).abs() < 0.01, "{}", b.ratio());
        // The one that was only asleep finds its part gone and takes another.
        a.tick(62, &mut memory);
        a.tick(63, &mut memory);
        assert_eq!(memory.slots.len(), 2);
        assert_eq!(a.0.ours, Some(1));
    }

    #[test]
    fn a_part_claimed_by_two_at_once_ends_with_one() {
        let (mut memory, mut a, mut b) = (Memory::default(), Worker::new(1), Worker::new(2));
        a.tick(1, &mut memory);
        // b saw no part either, and its first write came last.
        let mut other = Memory::default();
        b.tick(1, &mut other);
        memory.slots.extend(other.slots);
        for second in 2..4 {
            a.tick(second, &mut memory);
            b.tick(second, &mut memory);
        }
        assert_eq!((a.0.ours, b.0.ours), (Some(1), Some(0)));
    }

    #[test]
    fn a_worker_whose_part_is_lost_publishes_again() {
        let (mut memory, mut a, mut b) = (Memory::default(), Worker::new(1), Worker::new(2));
        a.tick(1, &mut memory);
        b.tick(1, &mut memory);
        for loss in 2..4 {
            let name = a.0.name(a.0.ours.unwrap());
            if loss == 2 {
                memory.slots.insert(name, b"garbage".to_vec());
            } else {
                memory.slots.remove(&name);
            }
            for second in 0..40 {
                a.teach(second, loss * 1000);
            }
            for _ in 0..3 {
                a.tick(loss, &mut memory);
                b.tick(loss, &mut memory);
            }
            let expected = 6.0 / loss as f64;
            assert!((b.ratio() - expected).abs() < 0.3, "{loss}: {}", b.ratio());
        }
    }

    #[test]
    fn a_busy_or_broken_memory_does_no_harm() {
        let (mut memory, mut a) = (Memory { busy: true, ..Memory::default() }, Worker::new(1));
        a.tick(1, &mut memory);
        assert!(memory.slots.is_empty());
        memory.busy = false;
        memory.slots.insert(a.0.name(0), b"garbage".to_vec());
        a.tick(2, &mut memory);
        assert_eq!(a.0.ours, Some(0), "unreadable content is overwritten");
        assert!(Part::decode(&memory.slots[&a.0.name(0)]).is_some());
    }

    fn part() -> impl Strategy<Value = Part> {
        let answer = (any::<u8>(), 16_u64..1 << 20, 16_u64..1 << 20);
        // One owner writes one content for one version.
        (0_u64..4, 0_u64..4, prop::collection::vec(answer, 0..3)).prop_map(
            |(owner, version, answers)| {
                let (settings, mut learner) = (Settings::default(), Learner::default());
                for (model, bytes, tokens) in answers {
                    let (model, text) = (Key::model(&[model]), Tally::of(Class::Tools, bytes));
                    learner.learn(at(version), &settings, model, &text, 1, tokens);
                    learner.learn_output(at(version), model, TenantClass::Spot, tokens);
                }
                let learned = learner.own().clone();
                Part { instance: 7, owner, version, heartbeat: at(version), learned }
            },
        )
    }

    /// Views of one history: a version of a part has one content everywhere.
    fn views() -> impl Strategy<Value = [View; 3]> {
        let history = prop::collection::vec(((0_u32..3), part()), 1..12);
        (history, any::<[u16; 3]>()).prop_map(|(history, picks)| {
            let mut written = BTreeMap::new();
            for (place, part) in history {
                written.entry((place, part.version, part.owner)).or_insert(part);
            }
            picks.map(|pick| {
                let mut view = View::default();
                for (at, ((place, ..), part)) in written.iter().enumerate() {
                    if pick >> (at % 16) & 1 == 1 {
                        view.put(*place, part.clone());
                    }
                }
                view
            })
        })
    }

    fn bytes(view: &View) -> Vec<(u32, Vec<u8>)> {
        view.0.iter().map(|(place, part)| (*place, part.encode())).collect()
    }

    fn merged(a: &View, b: &View) -> View {
        let mut both = a.clone();
        both.merge(b);
        both
    }

    proptest! {
        #[test]
        fn merging_is_commutative_associative_and_idempotent([a, b, c] in views()) {
            prop_assert_eq!(bytes(&merged(&a, &b)), bytes(&merged(&b, &a)));
            prop_assert_eq!(
                bytes(&merged(&merged(&a, &b), &c)), bytes(&merged(&a, &merged(&b, &c)))
            );
            prop_assert_eq!(bytes(&merged(&a, &a)), bytes(&a));
        }

        #[test]
        fn parts_survive_their_encoding(part in part(), cut in any::<prop::sample::Index>()) {
            let bytes = part.encode();
            prop_assert_eq!(Part::decode(&bytes).unwrap().encode(), bytes.clone());
            let cut = cut.index(bytes.len());
            prop_assert!(Part::decode(&bytes[..cut]).is_none());
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in any::<Vec<u8>>()) {
            let mut with_header = MAGIC.to_le_bytes().to_vec();
            with_header.extend(LAYOUT.to_le_bytes());
            with_header.extend(&bytes);
            let _ = (Part::decode(&bytes), Part::decode(&with_header));
        }
    }
}
