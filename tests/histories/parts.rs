//! From what was asked and answered to the parts that have to fit together. What is stored at the end says what became
//! of requests whose answers were lost.

use serde_json::Value;
use uuid::Uuid;

use crate::answers::{micros, refusal, said, uuid, view};
use crate::dump::Stored;
use crate::plan::Ask;
use crate::record::{Call, History, Micros, NEVER, Op, Outcome, Record};
use crate::steps::{Part, PreviewSaid, Said, Step};
use crate::words::{Grant, Heard, Span};

/// What cannot be true whatever the order.
#[derive(Debug)]
pub(crate) struct Plain {
    pub(crate) record: u32,
    pub(crate) why: String,
}

/// What is known of the clocks of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// How far the two clocks may be apart.
    pub(crate) slack: Micros,
    /// When the last server had ended: nothing happened later.
    pub(crate) end: Micros,
}

struct Builder<'a> {
    stored: &'a Stored,
    bounds: Bounds,
    /// The record at hand.
    record: &'a Record,
    parts: Vec<Part>,
}

/// The parts of a history, or what is plainly wrong with it.
pub(crate) fn parts(history: &History, stored: &Stored, bounds: Bounds) -> Result<Vec<Part>, Plain> {
    let mut parts = Vec::new();
    for record in &history.records {
        let mut builder = Builder {
            stored,
            bounds,
            record,
            parts,
        };
        builder.read(history.group).map_err(|why| Plain {
            record: record.number,
            why,
        })?;
        parts = builder.parts;
    }
    // What was over by then may be there still, or not any more.
    let last = Span(bounds.end - bounds.slack, bounds.end + bounds.slack);
    let end = |step: Step| Part {
        record: None,
        step,
        called: NEVER,
        returned: NEVER,
        at: last,
        until_now: last,
        optional: false,
        after: None,
    };
    for job in &stored.jobs {
        parts.push(end(match &job.view {
            Some(view) => Step::View(job.id, view.clone()),
            None => Step::IsGone(job.id),
        }));
    }
    for (slot, row) in stored.windows.iter().enumerate() {
        let row = row.as_ref().map(|row| (row.job, row.until));
        parts.push(end(Step::WindowRow(slot as u8, row)));
    }
    Ok(parts)
}

impl Builder<'_> {
    fn part(&mut self, step: Step, at: Span) -> usize {
        let record = self.record;
        self.parts.push(Part {
            record: Some(record.number),
            step,
            called: record.called,
            returned: record.returned,
            at,
            until_now: self.at(),
            optional: false,
            after: None,
        });
        self.parts.len() - 1
    }

    fn optional(&mut self, step: Step, at: Span) {
        let part = self.part(step, at);
        self.parts[part].optional = true;
    }

    /// When the server's clock was read, if the answer does not say.
    fn at(&self) -> Span {
        let Bounds { slack, end } = self.bounds;
        Span(self.record.called - slack, self.record.returned.min(end) + slack)
    }

    /// The instant of a decision, which must lie within its call.
    fn decided(&self, receipt: &Value) -> Result<Span, String> {
        let decided = micros(&receipt["decided_at"])?;
        if self.at().holds(decided) {
            Ok(Span::at(decided))
        } else {
            Err(format!(
                "it was decided outside of its call, at {}",
                receipt["decided_at"]
            ))
        }
    }

    fn read(&mut self, group: u64) -> Result<(), String> {
        let record = self.record;
        match &record.outcome {
            Outcome::Answered { status, body } => self.answered(group, *status, body),
            Outcome::Nothing(said) => self.nothing(group, said),
            Outcome::Unknown(_) => self.unknown(group),
        }
    }

    fn nothing(&mut self, group: u64, said: &str) -> Result<(), String> {
        let traces = match &self.record.op {
            Op::Dispatch(ask) => self.stored.of(ask).count(),
            Op::Batch { items, .. } => items.iter().map(|ask| self.stored.of(ask).count()).sum(),
            Op::Reserve { .. } => self.stored.taken(&History::label(group, self.record.number)).len(),
            _ => 0,
        };
        if traces == 0 {
            Ok(())
        } else {
            Err(format!(
                "nothing was done, it was said ({said}); but something is stored"
            ))
        }
    }

    fn unknown(&mut self, group: u64) -> Result<(), String> {
        let record = self.record;
        let at = self.at();
        match &record.op {
            Op::Dispatch(ask) => self.unheard_dispatches(std::slice::from_ref(ask))?,
            Op::Batch { items, .. } => self.unheard_dispatches(items)?,
            Op::Reserve {
                lease_ms, reserve_id, ..
            } => {
                let grant = Grant {
                    token: Uuid::from_u128(u128::from(record.number)),
                    lease: lease_ms * 1_000,
                    until: None,
                    attempt: None,
                    reserve_id: reserve_id.clone(),
                    unheard: true,
                    renewed: false,
                };
                let taken = self.stored.taken(&History::label(group, record.number));
                if !taken.is_empty() {
                    let grants = taken.iter().map(|id| (*id, grant.clone())).collect();
                    self.part(Step::Reserve(grants), at);
                } else if reserve_id.is_some() {
                    let renewed = true;
                    self.optional(Step::Renew(Grant { renewed, ..grant }), at);
                }
            }
            Op::Call { job, token, call } => {
                self.optional(Step::Call(*job, *token, *call, Heard::Nothing), at);
            }
            Op::Finish(calls) => {
                for (job, token, call) in calls {
                    self.optional(Step::Call(*job, *token, *call, Heard::Nothing), at);
                }
            }
            Op::Cancel { job, force } => self.optional(Step::Cancel(*job, *force, true), at),
            Op::Retry { job } | Op::Intrude { job } => self.optional(Step::Retry(*job), at),
            Op::Reset { slot, job } => self.optional(Step::MayHaveReset(*slot, *job), at),
            Op::Delete { job } => self.optional(Step::Delete(*job), at),
            Op::Preview(_) | Op::ReadJob { .. } | Op::ReadActive { .. } | Op::ReadWindow { .. } => {}
        }
        Ok(())
    }

    /// Dispatches of one transaction whose receipts nobody heard.
    fn unheard_dispatches(&mut self, items: &[Ask]) -> Result<(), String> {
        let mut made = Vec::new();
        let mut at = self.at();
        for ask in items {
            let mut jobs = self.stored.of(ask);
            if let Some(job) = jobs.next() {
                if !at.holds(job.dispatched) {
                    return Err("a job was made outside of its call".into());
                }
                at = Span::at(job.dispatched);
                made.push((ask.clone(), Said::Stored(job.id)));
            }
            if jobs.next().is_some() {
                return Err("one dispatch made two jobs".into());
            }
        }
        for ask in items {
            let both = ask.active.is_some() && ask.slot.is_some();
            if both && self.stored.of(ask).next().is_none() {
                self.optional(Step::Dispatch(vec![(ask.clone(), Said::MayHaveLinked)]), at);
            }
        }
        if !made.is_empty() {
            self.part(Step::Dispatch(made), at);
        }
        Ok(())
    }

    fn answered(&mut self, group: u64, status: u16, body: &Value) -> Result<(), String> {
        let record = self.record;
        let at = self.at();
        let code = body["code"].as_str().unwrap_or_default();
        match (&record.op, status) {
            (Op::Dispatch(ask), 200 | 201) => {
                let at = self.decided(body)?;
                let said = said(body)?;
                if (status == 201) != matches!(said, Said::Created(_)) {
                    return Err(format!("a receipt came with {status}"));
                }
                self.check_made(ask, &said)?;
                self.part(Step::Dispatch(vec![(ask.clone(), said)]), at);
            }
            (Op::Dispatch(ask), 409) => {
                self.made_nothing(std::slice::from_ref(ask))?;
                self.refused(ask, body, false)?;
            }
            (Op::Preview(ask), 200) => {
                let at = self.decided(body)?;
                let said = if body["disposition"] == "created" {
                    PreviewSaid::WouldCreate
                } else {
                    PreviewSaid::Other(said(body)?)
                };
                self.part(Step::Preview(ask.clone(), said), at);
            }
            (Op::Preview(ask), 409) => {
                let said = PreviewSaid::Other(refusal(body)?);
                self.part(Step::Preview(ask.clone(), said), at);
            }
            (Op::Batch { items, .. }, 200) => self.batch(items, body)?,
            (Op::Batch { items, .. }, 409) => {
                self.made_nothing(items)?;
                let index = body["index"].as_u64().ok_or("a batch is refused, and no item named")?;
                let ask = items.get(index as usize).ok_or("no item of the batch is that one")?;
                // An item before it may have been about to tie the window key to a job that was there.
                let before = &items[..index as usize];
                let tied = ask.slot.is_some() && before.iter().any(|item| item.slot == ask.slot);
                self.refused(ask, body, tied)?;
            }
            (Op::Reserve { .. }, 200) => self.reserved(group, body)?,
            (Op::Call { job, token, call }, 200) => {
                let heard = match call {
                    Call::Heartbeat { .. } => Heard::Beat(
                        micros(&body["expires_at"])?,
                        body["cancel_requested"].as_bool().ok_or("no cancel_requested")?,
                    ),
                    _ => Heard::Accepted,
                };
                let beat = heard != Heard::Accepted;
                let part = self.part(Step::Call(*job, *token, *call, heard), at);
                if !beat {
                    self.shown(*job, body, part)?;
                }
            }
            (Op::Call { job, token, call }, 409) if code == "lease_lost" => {
                self.part(Step::Call(*job, *token, *call, Heard::LeaseLost), at);
            }
            (Op::Finish(calls), 200) => self.finished(calls, body)?,
            (Op::Cancel { job, force }, 200) => {
                let part = self.part(Step::Cancel(*job, *force, true), at);
                self.shown(*job, body, part)?;
            }
            (Op::Cancel { job, force }, 409) if code == "job_finished" => {
                self.part(Step::Cancel(*job, *force, false), at);
            }
            (Op::Retry { job }, 200) => {
                let part = self.part(Step::Retry(*job), at);
                self.shown(*job, body, part)?;
            }
            (Op::Intrude { job }, 200) => {
                self.part(Step::Retry(*job), at);
            }
            (Op::Retry { job } | Op::Intrude { job }, 409) if code == "active_key_held" => {
                self.part(Step::ActiveKeyHeld(*job), at);
            }
            (Op::Retry { job } | Op::Delete { job }, 409) if code == "job_not_finished" => {
                self.part(Step::IsLive(*job), at);
            }
            (Op::Delete { job }, 200) => {
                self.part(Step::Delete(*job), at);
            }
            (Op::Reset { slot, job }, 200) => {
                let held = uuid(&body["job_id"]).ok();
                if body["released"].as_bool() != Some(held.is_some()) {
                    return Err("released and job_id do not agree".into());
                }
                self.part(Step::Reset(*slot, *job, held), at);
            }
            (Op::ReadJob { job }, 200) => {
                self.part(Step::View(*job, view(body)?), at);
            }
            (Op::ReadActive { key }, 200) => {
                self.part(Step::ActiveHeldBy(*key, uuid(&body["job_id"]).ok()), at);
            }
            (Op::ReadWindow { slot }, 200) => {
                let holder = match uuid(&body["job_id"]) {
                    Ok(job) => Some((job, micros(&body["expires_at"])?)),
                    Err(_) => None,
                };
                self.part(Step::WindowHeldBy(*slot, holder), at);
            }
            (
                Op::Call { job, .. }
                | Op::Cancel { job, .. }
                | Op::Retry { job }
                | Op::Delete { job }
                | Op::ReadJob { job },
                404,
            ) => {
                self.part(Step::IsGone(*job), at);
            }
            _ => return Err(format!("it was answered {status} {code}")),
        }
        Ok(())
    }

    /// The job as an answer shows it: as it was when the transaction was stored, or a moment later.
    fn shown(&mut self, job: Uuid, body: &Value, after: usize) -> Result<(), String> {
        let at = self.at();
        let part = self.part(Step::View(job, view(body)?), at);
        self.parts[part].after = Some(after);
        Ok(())
    }

    fn refused(&mut self, ask: &Ask, body: &Value, tied: bool) -> Result<(), String> {
        let at = self.at();
        match refusal(body)? {
            // Of an item before it: a job or a tie that never was.
            Said::Conflict(None, _) => {}
            Said::Conflict(..) if tied => {}
            Said::Composition(window, active) => {
                // One of the two may be newer than the look at the other.
                if !tied {
                    self.part(Step::HoldsWindow(ask.clone(), window), at);
                }
                self.part(Step::HoldsActive(ask.clone(), active), at);
            }
            said => {
                self.part(Step::Dispatch(vec![(ask.clone(), said)]), at);
            }
        }
        Ok(())
    }

    fn made_nothing(&self, items: &[Ask]) -> Result<(), String> {
        match items.iter().find(|ask| self.stored.of(ask).next().is_some()) {
            None => Ok(()),
            Some(ask) => Err(format!("it was refused, and #{} is stored", ask.marker)),
        }
    }

    /// What a dispatch says that it made is what is stored of it.
    fn check_made(&self, ask: &Ask, said: &Said) -> Result<(), String> {
        let made: Vec<Uuid> = self.stored.of(ask).map(|job| job.id).collect();
        let expected: Vec<Uuid> = match said {
            Said::Created(receipt) => vec![receipt.job],
            _ => Vec::new(),
        };
        if made == expected {
            Ok(())
        } else {
            Err(format!("it made {expected:?}, it says; {made:?} is stored of it"))
        }
    }

    fn batch(&mut self, items: &[Ask], body: &Value) -> Result<(), String> {
        let results = body["results"].as_array().ok_or("a batch without results")?;
        if results.len() != items.len() {
            return Err(format!("{} results for {} items", results.len(), items.len()));
        }
        let mut together = Vec::new();
        let (mut jobs, mut slots) = (Vec::new(), Vec::new());
        let mut decided = None;
        let mut counts = [0_u64; 3];
        for (index, (ask, result)) in items.iter().zip(results).enumerate() {
            if result["index"] != index {
                return Err(format!("result {index} is called {}", result["index"]));
            }
            let said = if result["error"].is_object() {
                refusal(&result["error"])?
            } else {
                decided = Some(self.decided(&result["receipt"])?);
                said(&result["receipt"])?
            };
            self.check_made(ask, &said)?;
            let own_slot = ask.slot.is_some_and(|slot| slots.contains(&slot));
            let at = decided.unwrap_or(self.at());
            match &said {
                Said::Created(receipt) | Said::Linked(receipt) => {
                    let linked = matches!(said, Said::Linked(_));
                    counts[usize::from(linked)] += 1;
                    if !linked {
                        jobs.push(receipt.job);
                    }
                    slots.extend(ask.slot);
                    together.push((ask.clone(), said));
                }
                Said::Reused(receipt) => {
                    counts[1] += 1;
                    let met = jobs.contains(&receipt.job) || own_slot;
                    let item = (ask.clone(), said);
                    if met {
                        together.push(item);
                    } else {
                        self.part(Step::Dispatch(vec![item]), at);
                    }
                }
                Said::Conflict(..) => {
                    counts[2] += 1;
                    if own_slot {
                        together.push((ask.clone(), said));
                    } else {
                        let at = self.at();
                        self.part(Step::Dispatch(vec![(ask.clone(), said)]), at);
                    }
                }
                Said::Composition(window, active) => {
                    counts[2] += 1;
                    let at = self.at();
                    if !own_slot {
                        self.part(Step::HoldsWindow(ask.clone(), *window), at);
                    }
                    if !jobs.contains(active) {
                        self.part(Step::HoldsActive(ask.clone(), *active), at);
                    }
                }
                Said::Stored(_) | Said::MayHaveLinked => {}
            }
        }
        let said = ["created", "reused", "conflicts"].map(|name| body[name].as_u64().unwrap_or(u64::MAX));
        if said != counts {
            return Err(format!("created, reused and conflicts are said to be {said:?}"));
        }
        if !together.is_empty() {
            let at = decided.unwrap_or(self.at());
            self.part(Step::Dispatch(together), at);
        }
        Ok(())
    }

    fn reserved(&mut self, group: u64, body: &Value) -> Result<(), String> {
        let Op::Reserve {
            max,
            lease_ms,
            reserve_id,
        } = &self.record.op
        else {
            return Ok(());
        };
        let jobs = body["jobs"].as_array().ok_or("a reserve without jobs")?;
        let mut grants = Vec::new();
        for job in jobs {
            let attempt = job["attempt"].as_i64().ok_or("a job without attempt")?;
            let grant = Grant {
                token: uuid(&job["lease"]["token"])?,
                lease: lease_ms * 1_000,
                until: Some(micros(&job["lease"]["expires_at"])?),
                attempt: Some(attempt as i32),
                reserve_id: reserve_id.clone(),
                unheard: false,
                renewed: false,
            };
            let until = self.at().later(grant.lease);
            if !grant.until.is_some_and(|said| until.holds(said)) {
                return Err(format!(
                    "a lease of {lease_ms} ms ends at {}",
                    job["lease"]["expires_at"]
                ));
            }
            grants.push((uuid(&job["job_id"])?, grant));
        }
        // A repeated reserve gives what the first one got, whatever it asks for now.
        if reserve_id.is_none() && grants.len() > usize::from(*max) {
            return Err(format!("{} jobs for a worker that asked for {max}", grants.len()));
        }
        let taken = self.stored.taken(&History::label(group, self.record.number));
        if let Some(other) = taken.iter().find(|id| !grants.iter().any(|(given, _)| given == *id)) {
            return Err(format!("{other} was given out and is not in the answer"));
        }
        if !grants.is_empty() {
            let at = self.at();
            self.part(Step::Reserve(grants), at);
        }
        Ok(())
    }

    fn finished(&mut self, calls: &[(Uuid, Uuid, Call)], body: &Value) -> Result<(), String> {
        let results = body["results"].as_array().ok_or("a finish without results")?;
        if results.len() != calls.len() {
            return Err(format!("{} results for {} jobs", results.len(), calls.len()));
        }
        for ((job, token, call), result) in calls.iter().zip(results) {
            if uuid(&result["job_id"])? != *job {
                return Err(format!("a result is of {} in place of {job}", result["job_id"]));
            }
            let at = self.at();
            let error = &result["error"];
            match error["code"].as_str() {
                None => {
                    self.part(Step::Call(*job, *token, *call, Heard::Accepted), at);
                }
                Some("lease_lost") => {
                    self.part(Step::Call(*job, *token, *call, Heard::LeaseLost), at);
                }
                Some("job_not_found") => {
                    self.part(Step::IsGone(*job), at);
                }
                Some(_) if error["outcome"] == "none" => {}
                Some(_) if error["outcome"] == "unknown" => {
                    let step = Step::Call(*job, *token, *call, Heard::Nothing);
                    let at = Span(at.0, self.bounds.end);
                    self.optional(step, at);
                    if let Some(part) = self.parts.last_mut() {
                        (part.returned, part.until_now) = (NEVER, at);
                    }
                }
                Some(code) => return Err(format!("a job of a finish was answered {code}")),
            }
        }
        Ok(())
    }
}
