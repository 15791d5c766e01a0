//! Paged KV cache: how many blocks are free, and whose content they still have.
//!
//! Blocks of a kind are alike, so none has a number here. What matters is what a
//! block holds, how many sequences use it, and, once nobody does, its place in
//! the queue for reuse. Blocks for which all three agree, neighbours in one
//! prompt, are one *piece*: a prompt of thousands of blocks is a few pieces, and
//! taking, freeing and reusing them costs by the piece.
//!
//! As in vLLM's `v1/core/block_pool.py`: a sequence frees its blocks from its
//! tail, so that within a prompt the last block is reused first; content stays
//! until reuse; a block looked up again leaves the queue; the same content may
//! be in several blocks, of which the one written first is found.

use super::index::Index;
use super::table::{NONE, Table};

/// What a piece's blocks hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Content {
    /// Nothing that anybody could look up.
    #[default]
    Nothing,
    /// Blocks `start..end` of those that share a name.
    Named(u64),
    /// Blocks of a sequence that made room for others, which alone may find
    /// them. Carries its job.
    Own(u64),
}

#[derive(Debug)]
struct Piece {
    content: Content,
    start: u32,
    end: u32,
    users: u32,
    /// The rest of what it was cut from: users of the one use the other too, up
    /// to what they took.
    rest: u32,
    /// The next piece of this name, in order of writing.
    sibling: u32,
    /// Neighbours in the queue.
    before: u32,
    after: u32,
}

impl Default for Piece {
    fn default() -> Self {
        Self {
            content: Content::Nothing,
            start: 0,
            end: 0,
            users: 0,
            rest: NONE,
            sibling: NONE,
            before: NONE,
            after: NONE,
        }
    }
}

impl Piece {
    fn len(&self) -> u32 {
        self.end - self.start
    }
}

/// Named blocks that a sequence uses: `blocks` of them, from the start of a
/// piece on through its rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Holding {
    piece: u32,
    blocks: u32,
}

/// A part of what a look-up found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hit {
    piece: u32,
    from: u32,
    to: u32,
}

/// What a look-up found; reused from one to the next.
#[derive(Debug, Default)]
pub(super) struct Found {
    hits: Vec<Hit>,
    /// Named blocks found.
    pub(super) named: u32,
    /// The sequence's own blocks found behind them.
    pub(super) own: u32,
    /// Of all, blocks that nobody uses: taking them makes them unfree.
    pub(super) idle: u32,
}

impl Found {
    pub(super) fn blocks(&self) -> u32 {
        self.named + self.own
    }
}

#[derive(Debug)]
pub(super) struct Kv {
    capacity: u32,
    used: u32,
    pieces: Table<Piece>,
    index: Index,
    /// The queue's ends: the first is reused first.
    first: u32,
    last: u32,
    /// Blocks that share one name.
    per_name: u32,
    scratch: Vec<u32>,
}

impl Kv {
    /// `capacity` empty blocks; `per_name` blocks for each name of a prefix.
    pub(super) fn new(capacity: u32, per_name: u32) -> Self {
        let mut kv = Self {
            capacity,
            used: 0,
            pieces: Table::default(),
            index: Index::default(),
            first: NONE,
            last: NONE,
            per_name,
            scratch: Vec::new(),
        };
        let all = kv.pieces.add(Piece { end: capacity, ..Piece::default() });
        kv.queue(all);
        kv
    }

    pub(super) fn capacity(&self) -> u32 {
        self.capacity
    }

    pub(super) fn used(&self) -> u32 {
        self.used
    }

    pub(super) fn free(&self) -> u32 {
        self.capacity - self.used
    }

    /// Looks up a prefix: its longest run of blocks in the cache, of at most
    /// `most` blocks. `own`: what [`Kv::keep_own`] gave for the job.
    pub(super) fn look_up(
        &self,
        names: &[u64],
        named: u32,
        own: Option<(u32, u64)>,
        most: u32,
        found: &mut Found,
    ) {
        found.hits.clear();
        (found.named, found.own, found.idle) = (0, 0, 0);
        let limit = named.min(most);
        for &name in names {
            if found.named == limit {
                break;
            }
            let wanted = self.per_name.min(limit - found.named);
            let mut at = 0;
            while at < wanted {
                let Some((place, end)) = self.holder(name, at) else { return };
                let to = end.min(wanted);
                found.hits.push(Hit { piece: place, from: at, to });
                if self.pieces.at(place).users == 0 {
                    found.idle += to - at;
                }
                found.named += to - at;
                at = to;
            }
        }
        if found.named == named
            && let Some((place, job)) = own
            && let Some(piece) = self.pieces.get(place)
            && piece.content == Content::Own(job)
        {
            found.own = piece.len().min(most - named);
            found.idle += found.own;
        }
    }

    /// The first written piece that has block `at` of the name, and its end.
    #[inline]
    fn holder(&self, name: u64, at: u32) -> Option<(u32, u32)> {
        let mut place = self.index.get(name)?;
        while place != NONE {
            let piece = self.pieces.at(place);
            if piece.start <= at && at < piece.end {
                return Some((place, piece.end));
            }
            place = piece.sibling;
        }
        None
    }

    /// Uses what was found.
    pub(super) fn take(
        &mut self,
        found: &Found,
        own: Option<(u32, u64)>,
        holdings: &mut Vec<Holding>,
    ) {
        for &Hit { mut piece, from, to } in &found.hits {
            if self.pieces.at(piece).start < from {
                piece = self.cut(piece, from);
            }
            if to < self.pieces.at(piece).end {
                self.cut(piece, to);
            }
            if self.pieces.at(piece).users == 0 {
                self.unqueue(piece);
                self.used += to - from;
            }
            self.pieces.at_mut(piece).users += 1;
            holdings.push(Holding { piece, blocks: to - from });
        }
        if found.own > 0
            && let Some((place, _)) = own
        {
            // What is not taken of it will not be looked for again.
            let piece = self.pieces.at_mut(place);
            piece.start += found.own;
            self.used += found.own;
            if piece.start == piece.end {
                self.unqueue(place);
                self.drop_piece(place);
            }
        }
        if let Some((place, job)) = own {
            self.forget_own(place, job);
        }
    }

    /// Takes free blocks for new content, oldest first.
    pub(super) fn allocate(&mut self, mut blocks: u32) {
        debug_assert!(blocks <= self.free(), "{blocks} of {} free blocks", self.free());
        self.used += blocks;
        while blocks > 0 && self.first != NONE {
            let place = self.first;
            let piece = self.pieces.at_mut(place);
            let part = piece.len().min(blocks);
            blocks -= part;
            piece.end -= part;
            if piece.start == piece.end {
                self.unqueue(place);
                self.unname(place);
                self.drop_piece(place);
            }
        }
    }

    /// Makes blocks `from..to` of a sequence, just allocated, findable by the
    /// names that they have.
    pub(super) fn write(
        &mut self,
        names: &[u64],
        mut from: u32,
        to: u32,
        holdings: &mut Vec<Holding>,
    ) {
        while from < to {
            let (nth, start) = (from / self.per_name, from % self.per_name);
            let Some(&name) = names.get(nth as usize) else { return };
            let end = self.per_name.min(start + to - from);
            let place = self.pieces.add(Piece {
                content: Content::Named(name),
                start,
                end,
                users: 1,
                ..Piece::default()
            });
            if let Some(mut last) = self.index.get_or_set(name, place) {
                while self.pieces.at(last).sibling != NONE {
                    last = self.pieces.at(last).sibling;
                }
                self.pieces.at_mut(last).sibling = place;
            }
            holdings.push(Holding { piece: place, blocks: end - start });
            from += end - start;
        }
    }

    /// Frees blocks that nobody can look up.
    pub(super) fn free_nameless(&mut self, blocks: u32) {
        if blocks == 0 {
            return;
        }
        self.used -= blocks;
        if self.last != NONE && self.pieces.at(self.last).content == Content::Nothing {
            self.pieces.at_mut(self.last).end += blocks;
            return;
        }
        let place = self.pieces.add(Piece { end: blocks, ..Piece::default() });
        self.queue(place);
    }

    /// Frees blocks that their sequence may look up again. Gives the place to
    /// look at.
    pub(super) fn keep_own(&mut self, job: u64, blocks: u32) -> u32 {
        if blocks == 0 {
            return NONE;
        }
        self.used -= blocks;
        let content = Content::Own(job);
        let place = self.pieces.add(Piece { content, end: blocks, ..Piece::default() });
        self.queue(place);
        place
    }

    /// The sequence will not look for these blocks again.
    pub(super) fn forget_own(&mut self, place: u32, job: u64) {
        if self.pieces.get(place).is_some_and(|piece| piece.content == Content::Own(job)) {
            self.pieces.at_mut(place).content = Content::Nothing;
        }
    }

    /// Frees named blocks, from the tail.
    pub(super) fn free_named(&mut self, holdings: &mut Vec<Holding>) {
        let mut chain = std::mem::take(&mut self.scratch);
        while let Some(Holding { piece, mut blocks }) = holdings.pop() {
            let mut place = piece;
            while blocks > 0 && place != NONE {
                chain.push(place);
                let piece = self.pieces.at(place);
                blocks -= piece.len().min(blocks);
                place = piece.rest;
            }
            while let Some(place) = chain.pop() {
                let piece = self.pieces.at_mut(place);
                piece.users -= 1;
                if piece.users == 0 {
                    let blocks = piece.len();
                    self.used -= blocks;
                    self.queue(place);
                }
            }
        }
        self.scratch = chain;
    }

    /// Cuts a piece at block `at` of its name; gives the part from there.
    fn cut(&mut self, place: u32, at: u32) -> u32 {
        let piece = self.pieces.at(place);
        let tail = Piece { start: at, before: NONE, after: NONE, ..*piece };
        let (queued, tail) = (piece.users == 0, self.pieces.add(tail));
        let piece = self.pieces.at_mut(place);
        piece.end = at;
        piece.rest = tail;
        piece.sibling = tail;
        if queued {
            // The tail is reused first.
            let before = piece.before;
            piece.before = tail;
            let part = self.pieces.at_mut(tail);
            part.before = before;
            part.after = place;
            if before == NONE {
                self.first = tail;
            } else {
                self.pieces.at_mut(before).after = tail;
            }
        }
        tail
    }

    /// Appends a piece to the queue.
    fn queue(&mut self, place: u32) {
        let last = self.last;
        let piece = self.pieces.at_mut(place);
        (piece.before, piece.after) = (last, NONE);
        if last == NONE {
            self.first = place;
        } else {
            self.pieces.at_mut(last).after = place;
        }
        self.last = place;
    }

    fn unqueue(&mut self, place: u32) {
        let piece = self.pieces.at(place);
        let (before, after) = (piece.before, piece.after);
        if before == NONE {
            self.first = after;
        } else {
            self.pieces.at_mut(before).after = after;
        }
        if after == NONE {
            self.last = before;
        } else {
            self.pieces.at_mut(after).before = before;
        }
    }

    /// Takes a piece out of its name's list.
    fn unname(&mut self, place: u32) {
        let piece = self.pieces.at(place);
        let Content::Named(name) = piece.content else { return };
        let next = piece.sibling;
        let Some(mut at) = self.index.replace(name, place, next) else { return };
        while at != NONE {
            let sibling = self.pieces.at(at).sibling;
            if sibling == place {
                self.pieces.at_mut(at).sibling = next;
                return;
            }
            at = sibling;
        }
    }

    fn drop_piece(&mut self, place: u32) {
        let piece = self.pieces.at_mut(place);
        piece.content = Content::Nothing;
        self.pieces.release(place);
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    /// The queue as text, what is reused first in front: names with their block
    /// numbers, `.` for a block without content.
    fn queue(kv: &Kv) -> String {
        let (mut text, mut place) = (String::new(), kv.first);
        while place != NONE {
            let piece = kv.pieces.at(place);
            for block in (piece.start..piece.end).rev() {
                let _ = match piece.content {
                    Content::Nothing => write!(text, "."),
                    Content::Named(name) => write!(text, " {name}:{block}"),
                    Content::Own(job) => write!(text, " own{job}:{block}"),
                };
            }
            place = piece.after;
        }
        text
    }

    fn look_up(kv: &Kv, names: &[u64], most: u32) -> Found {
        let mut found = Found::default();
        kv.look_up(names, names.len() as u32 * kv.per_name, None, most, &mut found);
        found
    }

    #[test]
    fn blocks_leave_from_the_tail_and_come_back_by_name() {
        let mut kv = Kv::new(8, 4);
        let (mut long, mut short) = (Vec::new(), Vec::new());
        kv.allocate(6);
        kv.write(&[7, 9], 0, 6, &mut long);
        // A second sequence shares all of 7 and one block of 9.
        let found = look_up(&kv, &[7, 9], 5);
        assert_eq!((found.named, found.idle), (5, 0));
        kv.take(&found, None, &mut short);
        assert_eq!(kv.used(), 6);
        kv.free_named(&mut long);
        assert_eq!(queue(&kv), ".. 9:1", "what only the first one used");
        kv.free_named(&mut short);
        assert_eq!(queue(&kv), ".. 9:1 9:0 7:3 7:2 7:1 7:0");
        // Reuse eats the prompt from its tail; what is left is found.
        kv.allocate(4);
        assert_eq!(queue(&kv), " 7:3 7:2 7:1 7:0");
        kv.allocate(1);
        let found = look_up(&kv, &[7, 9], 8);
        assert_eq!((found.named, found.idle), (3, 3));
        // A look-up in the middle of what is free cuts it out of the queue.
        let found = look_up(&kv, &[7, 9], 2);
        kv.take(&found, None, &mut short);
        assert_eq!(queue(&kv), " 7:2");
        kv.free_named(&mut short);
        assert_eq!(queue(&kv), " 7:2 7:1 7:0");
        kv.free_nameless(5);
        assert_eq!((queue(&kv).as_str(), kv.used()), (" 7:2 7:1 7:0.....", 0));
    }

    #[test]
    fn of_equal_blocks_the_first_written_is_found() {
        let mut kv = Kv::new(4, 1);
        let (mut one, mut two) = (Vec::new(), Vec::new());
        kv.allocate(2);
        kv.write(&[7], 0, 1, &mut one);
        kv.write(&[7], 0, 1, &mut two);
        kv.free_named(&mut two);
        assert_eq!(look_up(&kv, &[7], 1).idle, 0, "the one in use");
        kv.free_named(&mut one);
        assert_eq!(queue(&kv), ".. 7:0 7:0");
        let found = look_up(&kv, &[7], 1);
        kv.take(&found, None, &mut one);
        kv.allocate(3);
        assert_eq!(look_up(&kv, &[7], 1).named, 1, "the second was reused");
    }
}
