//! The order in which ranks are added: it alone determines the bits of a floating-point sum.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use crate::error::OrderError;

/// A nested sum over ranks, written `[[0,1],[2,3]]`.
///
/// At a `Sum` with children at positions 0..k the result is the balanced binary tree
/// `((0+1)+(2+3))+((4+5)+…)` over the positions; an absent position is skipped. A sum of one
/// child is that child, so [`SumOrder::sum`] leaves it out and equal orders compare equal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SumOrder {
    /// One rank's own values.
    Rank(u32),
    /// The sum of two or more children.
    Sum(Vec<SumOrder>),
}

impl SumOrder {
    /// The sum of `children` in this order; of one child, the child itself.
    pub fn sum(mut children: Vec<SumOrder>) -> SumOrder {
        if children.len() == 1 { children.remove(0) } else { SumOrder::Sum(children) }
    }

    /// Ranks `0..size` in one balanced sum: the order without a plan.
    pub fn flat(size: u32) -> SumOrder {
        SumOrder::sum((0..size).map(SumOrder::Rank).collect())
    }

    /// Whether the additions are those of [`SumOrder::flat`] of `size` ranks, as in nested sums of aligned blocks of ranks.
    pub fn is_balanced(&self, size: u32) -> bool {
        self.balanced_from(0) == Some(size)
    }

    /// Number of ranks, if this is a balanced sum of those from `first` on.
    fn balanced_from(&self, first: u32) -> Option<u32> {
        let children = match self {
            SumOrder::Rank(rank) => return (*rank == first).then_some(1),
            SumOrder::Sum(children) => children,
        };
        let block = children.first()?.balanced_from(first)?;
        let mut next = first + block;
        for (at, child) in children.iter().enumerate().skip(1) {
            let ranks = child.balanced_from(next)?;
            // The last block may lack ranks at its end.
            let fits = ranks == block || ranks < block && at + 1 == children.len();
            if !fits || !block.is_power_of_two() {
                return None;
            }
            next += ranks;
        }
        Some(next - first)
    }

    /// All ranks, in the order of additions.
    pub fn ranks(&self) -> Vec<u32> {
        let mut ranks = Vec::new();
        self.collect(&mut ranks);
        ranks
    }

    /// The lowest rank; `None` only for an empty sum.
    pub fn lowest_rank(&self) -> Option<u32> {
        match self {
            SumOrder::Rank(rank) => Some(*rank),
            SumOrder::Sum(children) => children.iter().filter_map(SumOrder::lowest_rank).min(),
        }
    }

    fn collect(&self, ranks: &mut Vec<u32>) {
        match self {
            SumOrder::Rank(rank) => ranks.push(*rank),
            SumOrder::Sum(children) => children.iter().for_each(|child| child.collect(ranks)),
        }
    }
}

impl fmt::Display for SumOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SumOrder::Rank(rank) => write!(f, "{rank}"),
            SumOrder::Sum(children) => {
                f.write_str("[")?;
                for (i, child) in children.iter().enumerate() {
                    if i > 0 {
                        f.write_str(",")?;
                    }
                    child.fmt(f)?;
                }
                f.write_str("]")
            }
        }
    }
}

impl FromStr for SumOrder {
    type Err = OrderError;

    /// Reads what `Display` writes; blanks are allowed. Errors: anything else, a repeated rank,
    /// nesting beyond `DEPTH_MAX` (the text may come from the network).
    fn from_str(text: &str) -> Result<SumOrder, OrderError> {
        let mut reader = Reader { text: text.as_bytes(), at: 0, seen: HashSet::new() };
        let order = reader.order(0)?;
        match reader.peek() {
            None => Ok(order),
            Some(_) => Err(reader.unexpected()),
        }
    }
}

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
    seen: HashSet<u32>,
}

impl Reader<'_> {
    fn order(&mut self, depth: usize) -> Result<SumOrder, OrderError> {
        if depth > DEPTH_MAX {
            return Err(OrderError::TooDeep { limit: DEPTH_MAX });
        }
        match self.peek() {
            Some(b'[') => self.children(depth),
            Some(b'0'..=b'9') => self.rank(),
            _ => Err(self.unexpected()),
        }
    }

    fn children(&mut self, depth: usize) -> Result<SumOrder, OrderError> {
        let mut children = Vec::new();
        loop {
            self.at += 1;
            children.push(self.order(depth + 1)?);
            match self.peek() {
                Some(b',') => continue,
                Some(b']') => break,
                _ => return Err(self.unexpected()),
            }
        }
        self.at += 1;
        Ok(SumOrder::sum(children))
    }

    fn rank(&mut self) -> Result<SumOrder, OrderError> {
        let start = self.at;
        let digits = self.text[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += digits;
        let rank = std::str::from_utf8(&self.text[start..self.at])
            .ok()
            .and_then(|text| text.parse().ok())
            .ok_or(OrderError::Unexpected {
                found: "a number beyond 32 bits".to_owned(),
                at: start,
            })?;
        if !self.seen.insert(rank) {
            return Err(OrderError::Repeated { rank });
        }
        Ok(SumOrder::Rank(rank))
    }

    fn peek(&mut self) -> Option<u8> {
        while self.text.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    fn unexpected(&mut self) -> OrderError {
        let found = match self.peek() {
            Some(byte) => format!("{:?}", char::from(byte)),
            None => "end".to_owned(),
        };
        OrderError::Unexpected { found, at: self.at }
    }
}

/// A fat tree has 3 levels; no fabric comes near this, and a parser's stack stays small.
const DEPTH_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn written_and_read() {
        let order: SumOrder = "[[0,1], [2,3]]".parse().unwrap();
        assert_eq!(order.to_string(), "[[0,1],[2,3]]");
        assert_eq!(order.ranks(), [0, 1, 2, 3]);
        assert_eq!("[[0],[[1]]]".parse::<SumOrder>().unwrap().to_string(), "[0,1]");
        assert_eq!("7".parse(), Ok(SumOrder::Rank(7)));
    }

    #[test]
    fn nonsense_is_refused() {
        for (text, message) in [
            ("", "unexpected end at byte 0"),
            ("[0,1", "unexpected end at byte 4"),
            ("[0,]", "unexpected ']' at byte 3"),
            ("[]", "unexpected ']' at byte 1"),
            ("[0,1]]", "unexpected ']' at byte 5"),
            ("[0,0]", "rank 0 stands in it twice"),
            ("[0,4294967296]", "beyond 32 bits"),
        ] {
            let error = text.parse::<SumOrder>().unwrap_err().to_string();
            assert!(error.contains(message), "{text:?}: {error}");
        }
        let deep = "[".repeat(100_000);
        assert_eq!(deep.parse::<SumOrder>(), Err(OrderError::TooDeep { limit: DEPTH_MAX }));
    }

    fn orders() -> impl Strategy<Value = SumOrder> {
        let shape = Just(()).prop_map(|()| SumOrder::Rank(0)).prop_recursive(4, 40, 5, |inner| {
            prop::collection::vec(inner, 1..5).prop_map(SumOrder::sum)
        });
        shape.prop_map(|mut order| {
            number(&mut order, &mut 0);
            order
        })
    }

    fn number(order: &mut SumOrder, next: &mut u32) {
        match order {
            SumOrder::Rank(rank) => {
                *rank = *next;
                *next += 1;
            }
            SumOrder::Sum(children) => children.iter_mut().for_each(|child| number(child, next)),
        }
    }

    proptest! {
        #[test]
        fn round_trip(order in orders()) {
            prop_assert_eq!(order.to_string().parse(), Ok(order));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[\\[\\],0-9 ]{0,60}") {
            if let Ok(order) = text.parse::<SumOrder>() {
                prop_assert_eq!(order.to_string().parse(), Ok(order));
            }
        }
    }
}
