//! What is done, and in which order, as the seed says: nothing here looks at what happens.

/// SplitMix64: a seed has to mean the same plan whatever becomes of the `rand` crate.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64, stream: u64) -> Dice {
        let mut dice = Dice(seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95));
        dice.roll();
        dice
    }

    pub(crate) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.roll() % bound
    }

    pub(crate) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    pub(crate) fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    pub(crate) fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    pub(crate) fn shuffle<T>(&mut self, all: &mut [T]) {
        for last in (1..all.len()).rev() {
            all.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

/// Window keys of a group: two of them global, one within a parent, one within an attempt of it.
pub(crate) const SLOTS: usize = 4;

/// One dispatch as it is asked for. Its marker is added when it is sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Ask {
    /// Unique among the dispatches of its group. It travels in `retention`, which is no part of a
    /// request's fingerprint, so that whatever is stored says which dispatch it stems from; and in the length of the
    /// window, so that no two windows end alike.
    pub(crate) marker: u32,
    pub(crate) active: Option<u8>,
    /// Which of [`SLOTS`].
    pub(crate) slot: Option<u8>,
    pub(crate) payload: u8,
    pub(crate) delay_ms: Option<u32>,
    pub(crate) reuse_on_mismatch: bool,
    /// As the database writes it: 1 succeeded, 2 failed, 4 cancelled.
    pub(crate) release_on: u8,
    pub(crate) max_attempts: i32,
    pub(crate) timeout_ms: Option<u32>,
    pub(crate) short_window: bool,
    pub(crate) short_retention: bool,
}

const LONG_WINDOW: i64 = 3_600_000;
const SHORT_WINDOW: i64 = 700;
const LONG_RETENTION: i64 = 600_000_000;
const SHORT_RETENTION: i64 = 300;

impl Ask {
    pub(crate) fn window_ms(&self) -> i64 {
        i64::from(self.marker) + if self.short_window { SHORT_WINDOW } else { LONG_WINDOW }
    }

    pub(crate) fn retention_ms(&self) -> i64 {
        i64::from(self.marker)
            + if self.short_retention {
                SHORT_RETENTION
            } else {
                LONG_RETENTION
            }
    }

    fn roll(dice: &mut Dice, keys: u64) -> Ask {
        let (active, slot) = match dice.below(10) {
            0..=3 => (Some(dice.below(keys) as u8), None),
            4..=5 => (None, Some(dice.below(SLOTS as u64) as u8)),
            6..=8 => (Some(dice.below(keys) as u8), Some(dice.below(SLOTS as u64) as u8)),
            _ => (None, None),
        };
        Ask {
            marker: 0,
            active,
            slot,
            payload: u8::from(dice.percent(25)),
            delay_ms: dice.percent(10).then(|| 150 + 100 * dice.below(4) as u32),
            reuse_on_mismatch: dice.percent(15),
            release_on: if dice.percent(60) { 0 } else { dice.below(8) as u8 },
            max_attempts: dice.between(1, 3) as i32,
            timeout_ms: dice.percent(12).then_some(600),
            short_window: dice.percent(35),
            short_retention: dice.percent(30),
        }
    }
}

/// The marker that a retention stands for.
pub(crate) fn marker_of_retention(retention_ms: i64) -> i64 {
    if retention_ms >= LONG_RETENTION {
        retention_ms - LONG_RETENTION
    } else {
        retention_ms - SHORT_RETENTION
    }
}

/// What a client means to do. Which job it is done to depends on which there are by then: `pick` chooses.
#[derive(Clone, Debug)]
pub(crate) enum Intent {
    Dispatch(Ask),
    Preview(Ask),
    Batch { items: Vec<Ask>, go_on: bool },
    Reserve { max: u8, lease_ms: u32, with_id: bool },
    Start,
    Heartbeat { lease_ms: u32 },
    Succeed,
    Fail { retry: bool, retry_in_ms: Option<u32> },
    Release,
    Finish { outcomes: Vec<u8> },
    Cancel { force: bool },
    Retry,
    Reset { slot: u8, of_job: bool },
    Delete,
    ReadJob,
    ReadKey { slot: u8, active: bool },
    Intrude,
}

/// What becomes of the answer on its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hearing {
    Whole,
    /// The answer comes and nobody hears it.
    Lost,
    /// The client hangs up after this long.
    HangUp {
        millis: u64,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub(crate) pause_ms: u64,
    pub(crate) server: u64,
    pub(crate) pick: u64,
    pub(crate) intent: Intent,
    pub(crate) hearing: Hearing,
    /// Sent again, elsewhere, if its outcome stays unknown.
    pub(crate) again: bool,
}

/// The clients of one group of keys, each with its list.
pub(crate) fn group(seed: u64, number: u64) -> Vec<Vec<Planned>> {
    let mut dice = Dice::new(seed, number + 1);
    // Some groups are one hot key, asked for from everywhere at once.
    let hot = dice.percent(25);
    let (clients, length) = if hot { (8, 6) } else { (4, 14) };
    let favourite = Ask::roll(&mut dice, 1);
    (0..clients)
        .map(|_| (0..length).map(|_| planned(&mut dice, hot, &favourite)).collect())
        .collect()
}

fn planned(dice: &mut Dice, hot: bool, favourite: &Ask) -> Planned {
    let intent = if hot && dice.percent(70) {
        Intent::Dispatch(favourite.clone())
    } else {
        intent(dice)
    };
    let pause_ms = match dice.below(20) {
        // Long enough for a lease of a second, a short window or a short retention to be over.
        0 => dice.between(900, 1_500),
        1..=2 => dice.between(100, 500),
        3..=9 => dice.between(1, 40),
        _ => 0,
    };
    let hearing = match dice.below(100) {
        0..=2 => Hearing::Lost,
        3..=4 => Hearing::HangUp { millis: dice.below(25) },
        _ => Hearing::Whole,
    };
    Planned {
        pause_ms: if hot { pause_ms / 4 } else { pause_ms },
        server: dice.roll(),
        pick: dice.roll(),
        intent,
        hearing,
        again: dice.percent(75),
    }
}

fn intent(dice: &mut Dice) -> Intent {
    const KEYS: u64 = 2;
    let lease_ms = |dice: &mut Dice| 1_000 + 100 * dice.below(6) as u32;
    match dice.below(100) {
        0..=24 => Intent::Dispatch(Ask::roll(dice, KEYS)),
        25..=31 => {
            let items = (0..dice.between(2, 4)).map(|_| Ask::roll(dice, KEYS)).collect();
            Intent::Batch {
                items,
                go_on: dice.percent(60),
            }
        }
        32..=34 => Intent::Preview(Ask::roll(dice, KEYS)),
        35..=49 => Intent::Reserve {
            max: dice.between(1, 3) as u8,
            lease_ms: lease_ms(dice),
            with_id: dice.percent(40),
        },
        50..=53 => Intent::Start,
        54..=58 => Intent::Heartbeat {
            lease_ms: lease_ms(dice),
        },
        59..=64 => Intent::Succeed,
        65..=70 => Intent::Fail {
            retry: dice.percent(75),
            retry_in_ms: dice.percent(50).then(|| 100 * dice.below(4) as u32),
        },
        71..=73 => Intent::Release,
        74..=76 => Intent::Finish {
            outcomes: (0..2).map(|_| dice.below(3) as u8).collect(),
        },
        77..=81 => Intent::Cancel {
            force: dice.percent(35),
        },
        82..=85 => Intent::Retry,
        86..=88 => Intent::Reset {
            slot: dice.below(SLOTS as u64) as u8,
            of_job: dice.percent(50),
        },
        89..=92 => Intent::Delete,
        93..=94 => Intent::ReadJob,
        95..=96 => Intent::ReadKey {
            slot: dice.below(SLOTS as u64) as u8,
            active: dice.percent(50),
        },
        _ => Intent::Intrude,
    }
}

/// What is done to servers, connections and the database.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Fault {
    KillServer,
    StopServer,
    RestartServer,
    CutBeforeCommit,
    CutAfterCommit,
    LoseCommitAnswer,
    CutConnections,
    DropTraffic,
    DelayTraffic,
    TerminateBackends,
    SlowStatements,
    FillLockTable,
    CrashPostgres,
    KillPostgres,
    /// One server lives an hour off, from the start.
    ShiftClock,
    LoseAnswers,
    HangUps,
}

impl Fault {
    /// Those that come and go. The rest goes on all the time.
    pub(crate) const DECK: [Fault; 14] = [
        Fault::KillServer,
        Fault::StopServer,
        Fault::RestartServer,
        Fault::CutBeforeCommit,
        Fault::CutAfterCommit,
        Fault::LoseCommitAnswer,
        Fault::CutConnections,
        Fault::DropTraffic,
        Fault::DelayTraffic,
        Fault::TerminateBackends,
        Fault::SlowStatements,
        Fault::FillLockTable,
        Fault::CrashPostgres,
        Fault::KillPostgres,
    ];
    pub(crate) const ALL_THE_TIME: [Fault; 3] = [Fault::ShiftClock, Fault::LoseAnswers, Fault::HangUps];
}

#[test]
fn a_seed_is_a_plan() {
    let plan = |seed| format!("{:?}", group(seed, 3));
    assert_eq!(plan(7), plan(7));
    assert_ne!(plan(7), plan(8));
    let mut dice = Dice::new(1, 1);
    let rolled: Vec<u64> = (0..4).map(|_| dice.below(1_000)).collect();
    assert_eq!(rolled, [782, 455, 455, 93]);
}
