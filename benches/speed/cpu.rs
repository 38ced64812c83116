//! Processor time, from /proc: of the client (this process), the servers and PostgreSQL.

use std::fs;

use crate::load::Failed;

/// Microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cpu {
    pub client: f64,
    pub server: f64,
    pub postgres: f64,
}

impl Cpu {
    pub fn since(&self, before: &Cpu) -> Cpu {
        Cpu {
            client: self.client - before.client,
            server: self.server - before.server,
            // A backend that ended takes its time with it.
            postgres: (self.postgres - before.postgres).max(0.0),
        }
    }

    pub fn for_each(&self, done: u64) -> Cpu {
        let each = |micros: f64| micros / done.max(1) as f64;
        Cpu {
            client: each(self.client),
            server: each(self.server),
            postgres: each(self.postgres),
        }
    }
}

/// What these processes have used until now. Elsewhere than on Linux nothing is known.
pub fn now(servers: &[u32]) -> Result<Cpu, Failed> {
    let mut cpu = Cpu::default();
    let Ok(processes) = fs::read_dir("/proc") else {
        return Ok(cpu);
    };
    for entry in processes {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // One that has just ended has nothing to say.
        let Some((name, micros)) = fs::read_to_string(format!("/proc/{pid}/stat"))
            .ok()
            .and_then(|stat| read(&stat))
        else {
            continue;
        };
        if pid == std::process::id() {
            cpu.client += micros;
        } else if servers.contains(&pid) {
            cpu.server += micros;
        } else if name == "postgres" {
            cpu.postgres += micros;
        }
    }
    Ok(cpu)
}

/// Name and time of a line such as `17 (postgres) S …`. The clock of /proc ticks a hundred times a second.
fn read(stat: &str) -> Option<(String, f64)> {
    let (head, tail) = stat.rsplit_once(')')?;
    let name = head.split_once('(')?.1.to_owned();
    let fields: Vec<&str> = tail.split_whitespace().collect();
    let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some((name, ticks as f64 * 10_000.0))
}
