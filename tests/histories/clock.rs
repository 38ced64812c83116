//! Instants of this process on the clock of the database, and a server whose own clock is wrong.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use sqlx::PgPool;

use crate::record::Micros;

/// Two processes on one machine read one clock; what is left is how well the reading is known.
const SLACK: Micros = 3_000;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    begin: Instant,
    offset: Micros,
}

impl Clock {
    /// Sets itself by the database's clock: the reading that took the shortest way counts.
    pub(crate) async fn set(pool: &PgPool) -> Result<Clock, sqlx::Error> {
        let begin = Instant::now();
        let offset = offset(pool, begin).await?;
        Ok(Clock { begin, offset })
    }

    pub(crate) fn now(&self) -> Micros {
        self.offset + micros(self.begin.elapsed())
    }

    /// How far an instant may be wrong by now.
    pub(crate) async fn slack(&self, pool: &PgPool) -> Result<Micros, sqlx::Error> {
        let now = offset(pool, self.begin).await?;
        Ok(SLACK + (now - self.offset).abs())
    }
}

async fn offset(pool: &PgPool, begin: Instant) -> Result<Micros, sqlx::Error> {
    let mut best: Option<(Duration, Micros)> = None;
    for _ in 0..30 {
        let sent = Instant::now();
        let sql = "select (extract(epoch from clock_timestamp()) * 1000000)::bigint";
        let read: Micros = sqlx::query_scalar(sql).fetch_one(pool).await?;
        let took = sent.elapsed();
        let middle = micros(sent.duration_since(begin) + took / 2);
        if best.is_none_or(|(shortest, _)| took < shortest) {
            best = Some((took, read - middle));
        }
    }
    Ok(best.map_or(0, |(_, offset)| offset))
}

fn micros(duration: Duration) -> Micros {
    Micros::try_from(duration.as_micros()).unwrap_or(Micros::MAX)
}

/// What goes before libc in a server, to shift the clock that it reads.
const SHIFT: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *time) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *)) dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, time);
    const char *shift = getenv("CLOCK_SHIFT_SECONDS");
    if (!failed && clock == CLOCK_REALTIME && shift) time->tv_sec += atol(shift);
    return failed;
}
"#;

/// Builds the library with the C compiler that rustc links with anyway.
pub(crate) fn shift_library() -> Result<PathBuf, String> {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (source, library) = (directory.join("clock_shift.c"), directory.join("clock_shift.so"));
    std::fs::write(&source, SHIFT).map_err(|error| error.to_string())?;
    let mut compile = Command::new("cc");
    compile
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&library)
        .arg(&source)
        .arg("-ldl");
    let output = compile.output().map_err(|error| format!("cc: {error}"))?;
    if output.status.success() {
        Ok(library)
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}
