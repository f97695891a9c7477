//! Which of several controllers to ask next.

/// Goes round the controllers; where one names the leader, that one is next.
#[derive(Debug)]
pub(super) struct Route {
    count: usize,
    at: usize,
    /// Attempts in this round.
    tried: usize,
}

impl Route {
    /// A route over so many controllers, at least one.
    pub fn new(count: usize) -> Route {
        Route { count: count.max(1), at: 0, tried: 0 }
    }

    /// The number of the controller to ask.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Goes on after a failure, to the controller `hint` if one was named. Returns whether the round is complete: then
    /// the caller waits.
    pub fn go_on(&mut self, hint: Option<usize>) -> bool {
        self.at = hint.filter(|&hint| hint != self.at).unwrap_or((self.at + 1) % self.count);
        self.tried += 1;
        let is_complete = self.tried >= self.count;
        if is_complete {
            self.tried = 0;
        }
        is_complete
    }

    /// Begins a new round after a success.
    pub fn succeeded(&mut self) {
        self.tried = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_asked_in_a_round_and_the_leader_first() {
        let mut route = Route::new(3);
        let mut order = vec![route.at()];
        let mut waits = Vec::new();
        for hint in [None, None, None, Some(2), Some(2), None] {
            waits.push(route.go_on(hint));
            order.push(route.at());
        }
        assert_eq!(order, [0, 1, 2, 0, 2, 0, 1], "who names itself is not asked again at once");
        assert_eq!(waits, [false, false, true, false, false, true]);
        let mut alone = Route::new(1);
        assert!(alone.go_on(Some(0)) && alone.go_on(None) && alone.at() == 0);
    }
}
