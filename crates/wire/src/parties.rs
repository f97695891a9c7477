//! Who takes part in a fragment, in the packets of every protocol that reduces, scatters and gathers.

/// Who contributes to a fragment, and who takes its result. Ranks are below [`MAX_SCOPED_RANKS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Parties {
    /// All contribute, all take (allreduce).
    #[default]
    All,
    /// All contribute, this rank takes (reduce, reduce-scatter).
    ToOne(u8),
    /// This rank contributes, all others take (broadcast, all-gather).
    FromOne(u8),
    /// Nobody contributes elements and nobody takes any (barrier).
    Nobody,
}

/// Ranks of a job whose fragments may have other parties than all: the width of the bitmaps of ranks.
pub const MAX_SCOPED_RANKS: u32 = 64;

impl Parties {
    /// Whether any of these ranks contributes elements.
    #[inline]
    pub const fn contributes(self, ranks: u64) -> bool {
        match self {
            Parties::All | Parties::ToOne(_) => true,
            Parties::FromOne(from) => ranks & rank_bit(from) != 0,
            Parties::Nobody => false,
        }
    }

    /// Whether any of these ranks takes the result.
    #[inline]
    pub const fn takes(self, ranks: u64) -> bool {
        match self {
            Parties::All => true,
            Parties::ToOne(to) => ranks & rank_bit(to) != 0,
            Parties::FromOne(from) => ranks & !rank_bit(from) != 0,
            Parties::Nobody => false,
        }
    }

    /// Its code in a packet; [`Parties::rank`] is in a byte of its own.
    pub const fn code(self) -> u8 {
        match self {
            Parties::All => 0,
            Parties::ToOne(_) => 1,
            Parties::FromOne(_) => 2,
            Parties::Nobody => 3,
        }
    }

    /// The rank that it names, or 0.
    pub const fn rank(self) -> u8 {
        match self {
            Parties::ToOne(rank) | Parties::FromOne(rank) => rank,
            Parties::All | Parties::Nobody => 0,
        }
    }

    /// The reverse of [`Parties::code`] and [`Parties::rank`].
    pub(crate) const fn from_codes(code: u8, rank: u8) -> Option<Parties> {
        let known = rank < MAX_SCOPED_RANKS as u8;
        match (code, rank) {
            (0, 0) => Some(Parties::All),
            (1, _) if known => Some(Parties::ToOne(rank)),
            (2, _) if known => Some(Parties::FromOne(rank)),
            (3, 0) => Some(Parties::Nobody),
            _ => None,
        }
    }
}

const fn rank_bit(rank: u8) -> u64 {
    1 << (rank as u32 % MAX_SCOPED_RANKS)
}
