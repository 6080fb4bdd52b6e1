//! What proxies and the store do when their time has come: the order is that of `proxy/admit.rs`,
//! of `redis/maintenance.rs` and of `lua/fleet.lua`.

use super::{
    AWAY_US, Answer, COUNTED_US, Contents, DAY_US, Event, MS, Mishap, Outage, Proxy, TIMEOUT_US,
    WINDOW_US, World,
};
use crate::limit::{Algorithm, Decision, Retry, Verdict};
use crate::store::recovery::Heartbeat;

impl World {
    pub(super) fn request(&mut self, who: usize) {
        let next_us = 1 + self.chance(2 * self.proxies[who].every_us);
        self.at(next_us, who, Event::Request);
        let proxy = &self.proxies[who];
        if proxy.is_away {
            return self.decide_alone(who);
        }
        let is_on = proxy.recovery.is_on() && !self.is_careless;
        let beside = is_on.then(|| {
            let beside = proxy.local.charge_beside(&self.charge);
            beside.allowed.then_some(beside)
        });
        let Some(beside) = beside.map_or(Some(None), |beside| beside.map(Some)) else {
            return;
        };
        let there_us = 100 + self.chance(2 * MS);
        self.at(there_us, who, Event::AtStore(beside));
    }

    pub(super) fn decide_alone(&mut self, who: usize) {
        let at = self.instant();
        let proxy = &mut self.proxies[who];
        if !proxy.recovery.may_decide(self.now_us) {
            return;
        }
        if proxy.local.charge(&self.charge).allowed {
            proxy.recovery.away(self.now_us);
            proxy.journal.add(&self.charge, at);
            proxy.admitted.push(self.now_us);
            // The store serves the others, and does not know of this unit. The proxy is away until
            // its next probe.
            self.excused += u64::from(self.mishap == Mishap::CutOff && self.now_us < AWAY_US);
        }
    }

    pub(super) fn at_store(&mut self, who: usize, beside: Option<Decision>) {
        if self.is_down || self.now_us < self.proxies[who].cut_off_until_us {
            return self.at(100, who, Event::Lost(beside));
        }
        // What waits in the socket of a frozen server is decided when it thaws, and told nobody.
        let rule = self.charge[0].window.rule;
        let moment = self.moment();
        let look = self.store.count.look(&rule, 1, moment);
        let allowed = look.retry == Retry::Now;
        let verdict: Verdict = self.store.count.settle(&rule, 1, &look, allowed);
        if self.is_frozen {
            return self.at(TIMEOUT_US, who, Event::Lost(beside));
        }
        let decision = Decision {
            allowed,
            at_us: self.now_us + self.ahead_us,
            verdicts: [verdict].into_iter().collect(),
        };
        let back_us = 100 + self.chance(2 * MS);
        let began_us = self.proxies[who].recovery.greeting(false, false).began_us;
        let answer = Answer {
            decision,
            beside,
            is_fooled: began_us != Some(self.store.began_us),
        };
        self.at(back_us, who, Event::Answer(answer));
    }

    pub(super) fn answered(&mut self, who: usize, answer: Answer) {
        let (decision, beside) = (&answer.decision, answer.beside);
        let (charge, now_us, at) = (&self.charge, self.now_us, self.instant());
        let at_us = decision.at_us - self.ahead_us;
        let proxy = &self.proxies[who];
        let own = answer.is_fooled.then(|| self.counted_by(proxy));
        let proxy = &mut self.proxies[who];
        proxy.last_at_us = at_us;
        proxy.last_used = decision.verdicts[0].used + u64::from(decision.allowed);
        match (decision.allowed, beside) {
            (false, Some(beside)) => proxy.local.give_back(charge, &beside),
            (false, None) => proxy.local.note(charge, decision, None),
            (true, Some(beside)) => {
                proxy.local.note(charge, decision, Some(&beside));
                proxy.admitted.push(at_us);
            }
            (true, None) => {
                let lost = proxy.local.lost_by(charge, decision, true);
                if lost.is_empty() && (self.is_careless || !proxy.recovery.is_on()) {
                    let warm = proxy.local.keep_warm(charge);
                    proxy.local.note(charge, decision, Some(&warm));
                    proxy.admitted.push(at_us);
                    // Nothing tells this proxy yet that the store was emptied: it goes by what that
                    // says, and takes it for what was left as well.
                    if let Some(own) = own {
                        let share = proxy.recovery.fleet().share(charge[0].window.rule).units;
                        self.excused += 1;
                        if !std::mem::replace(&mut proxy.was_fooled, true) {
                            self.excused += share.saturating_sub(own + 1);
                        }
                    }
                    return;
                }
                if !lost.is_empty() {
                    proxy.recovery.away(now_us);
                }
                lost.into_iter()
                    .for_each(|item| proxy.journal.suspect(item, now_us));
                if proxy.local.charge_beside(charge).allowed {
                    if proxy.recovery.has_lost(at_us) {
                        proxy.journal.add(charge, at);
                    }
                    proxy.admitted.push(at_us);
                }
            }
        }
    }

    pub(super) fn lost(&mut self, who: usize, beside: Option<Decision>) {
        let proxy = &mut self.proxies[who];
        if let Some(beside) = beside {
            proxy.local.give_back(&self.charge, &beside);
        }
        proxy.recovery.alive(self.now_us);
        // One lost call is no outage yet: the task must first fail to connect.
        self.decide_alone(who);
        let proxy = &mut self.proxies[who];
        if !proxy.is_away {
            proxy.is_away = true;
            proxy.recovery.away(self.now_us);
            let pause_us = 25 * MS + self.chance(475) * MS;
            self.at(pause_us, who, Event::Probe);
        }
    }

    pub(super) fn probe(&mut self, who: usize) {
        let proxy = &mut self.proxies[who];
        proxy.recovery.alive(self.now_us);
        if self.is_silent(who) {
            let pause_us = 250 * MS + self.chance(250) * MS;
            return self.at(pause_us, who, Event::Probe);
        }
        self.beat(who);
        self.pay(who);
        let proxy = &mut self.proxies[who];
        proxy.is_away = false;
        proxy.recovery.back(self.now_us);
        proxy.recovery.last_answers.forget_clock();
    }

    pub(super) fn maintenance(&mut self, who: usize) {
        let is_silent = self.is_silent(who);
        let proxy = &mut self.proxies[who];
        proxy.recovery.alive(self.now_us);
        let next_us = if proxy.recovery.is_on() { 200 } else { 500 };
        self.at(next_us * MS, who, Event::Upkeep);
        if is_silent && self.outage != Outage::MasterLost {
            if !self.proxies[who].is_away {
                self.lost(who, None);
            }
            return;
        }
        self.beat(who);
        if !self.proxies[who].is_away {
            self.proxies[who].journal.ripen(self.instant());
            self.pay(who);
        }
    }

    /// What `lua/fleet.lua` does.
    pub(super) fn beat(&mut self, who: usize) {
        let (now_us, at) = (self.now_us, self.instant());
        let (proxy, store) = (&mut self.proxies[who], &mut self.store);
        let greeting = (proxy.recovery).greeting(proxy.is_away, !proxy.journal.is_empty());
        let is_clear = greeting.is_clear;
        store.names.insert(proxy.name, now_us);
        if is_clear && greeting.began_us == Some(store.began_us) {
            store.clear.insert(proxy.name, now_us);
        }
        let heard = |at_us: &mut u64| *at_us + COUNTED_US >= now_us;
        store.names.retain(|_, at_us| heard(at_us));
        store.clear.retain(|_, at_us| heard(at_us));
        let clear = (store.clear.iter()).filter(|(_, at_us)| **at_us >= greeting.since_us);
        let beat = Heartbeat {
            size: store.names.len() as u32,
            place: store.names.range(..proxy.name).count() as u32,
            now_us,
            began_us: store.began_us,
            names: store.names.keys().copied().collect(),
            clear: clear.map(|(name, _)| *name).collect(),
        };
        if proxy.recovery.heard(greeting, beat, now_us) {
            for item in proxy.local.admitted() {
                proxy.journal.put(item, at);
            }
        }
    }

    pub(super) fn pay(&mut self, who: usize) {
        let moment = self.moment();
        let journal = &self.proxies[who].journal;
        let debts = journal.take(64, self.instant(), |_| true);
        for charge in &debts.owed {
            let rule = charge[0].window.rule;
            (self.store.count).charge_more(&rule, charge[0].cost, moment);
        }
        debts.paid(|_| true);
    }

    pub(super) fn used(&self) -> u64 {
        let rule = self.charge[0].window.rule;
        self.store.count.used(&rule, self.moment())
    }

    pub(super) fn stall(&mut self) {
        self.excuse_what_is_not_known();
        self.is_frozen = true;
        let for_us = 20 * MS + self.chance(200) * MS;
        self.at(for_us, 0, Event::ComeBack);
    }

    pub(super) fn cut_off(&mut self, victim: usize) {
        let for_us = 20 * MS + self.chance(200) * MS;
        self.proxies[victim].cut_off_until_us = self.now_us + for_us;
        let unknown = self.unknown_to(&self.proxies[victim]);
        self.excused += unknown.div_ceil(self.proxies.len() as u64);
    }

    /// Whether the store answers this proxy.
    fn is_silent(&self, who: usize) -> bool {
        let is_cut_off = self.now_us < self.proxies[who].cut_off_until_us;
        self.is_down || self.is_frozen || is_cut_off
    }

    pub(super) fn go_away(&mut self) {
        let away_us = match self.outage {
            Outage::Flushed | Outage::Handover => 0,
            _ => 100 * MS + self.chance(6_000) * MS,
        };
        self.excuse_what_is_not_known();
        match self.outage {
            Outage::Frozen => self.is_frozen = true,
            Outage::Flushed | Outage::Handover => {}
            _ => self.is_down = true,
        }
        if matches!(self.mishap, Mishap::Killed | Mishap::Stopped) {
            let victim = self.chance(self.proxies.len() as u64) as usize;
            let in_us = self.chance(away_us + 1_000 * MS);
            self.at(in_us, victim, Event::Mishap);
        }
        self.at(away_us, 0, Event::ComeBack);
    }

    /// A proxy that the store has not answered since others asked knows too little of them, and may
    /// admit its part of that.
    pub(super) fn excuse_what_is_not_known(&mut self) {
        let many = self.proxies.len() as u64;
        let unknown = |proxy: &Proxy| self.unknown_to(proxy).div_ceil(many);
        let unknown: u64 = self.proxies.iter().map(unknown).sum();
        self.excused += unknown;
    }

    pub(super) fn come_back(&mut self) {
        let now_us = self.now_us;
        self.is_down = false;
        self.is_frozen = false;
        if now_us < AWAY_US {
            return;
        }
        self.back_us = now_us;
        match self.outage {
            Outage::KilledAndKeeps | Outage::Frozen => {}
            Outage::KilledAndEmpty | Outage::Flushed => {
                let algorithm = self.store.count.algorithm();
                self.store = Contents::new(algorithm, now_us);
                let dead = self.proxies.iter().filter(|proxy| proxy.is_dead);
                let unknown: u64 = dead.map(|proxy| self.counted_by(proxy)).sum();
                self.excused += unknown;
            }
            Outage::Failover => self.store = self.replica.clone(),
            Outage::Handover => {
                let used = self.used();
                self.store = self.replica.clone();
                // The day's last units may be admitted before proxies charge again what is lost.
                if self.is_by_days() {
                    self.excused += used - self.used();
                }
            }
            Outage::MasterLost => self.store.count = self.replica.count.clone(),
        }
    }

    pub(super) fn mishap(&mut self, victim: usize) {
        let for_us = 200 * MS + self.chance(8_000) * MS;
        match self.mishap {
            Mishap::Killed => {
                self.proxies[victim].is_dead = true;
                if matches!(self.outage, Outage::KilledAndEmpty | Outage::Flushed) {
                    self.excused += self.counted_by(&self.proxies[victim]);
                }
            }
            Mishap::Stopped => self.proxies[victim].stopped_until_us = self.now_us + for_us,
            Mishap::None | Mishap::Stalled | Mishap::CutOff => {}
        }
    }

    /// The day of the store's clock.
    pub(super) fn day_of(&self, at_us: u64) -> u64 {
        (at_us + self.ahead_us) / DAY_US
    }

    pub(super) fn is_by_days(&self) -> bool {
        self.charge[0].window.rule.algorithm == Algorithm::Calendar
    }

    /// Units of a proxy that count now.
    pub(super) fn counted_by(&self, proxy: &Proxy) -> u64 {
        let counts = |at_us: &&u64| match self.is_by_days() {
            true => self.is_today(**at_us),
            false => **at_us + WINDOW_US > self.now_us,
        };
        proxy.admitted.iter().filter(counts).count() as u64
    }

    /// Units that others used since the store last answered a proxy. Of yesterday's it knows none.
    pub(super) fn unknown_to(&self, proxy: &Proxy) -> u64 {
        let is_old = self.is_by_days() && !self.is_today(proxy.last_at_us);
        let known = if is_old { 0 } else { proxy.last_used };
        self.used().saturating_sub(known)
    }

    pub(super) fn is_today(&self, at_us: u64) -> bool {
        self.day_of(at_us) == self.day_of(self.now_us)
    }
}
