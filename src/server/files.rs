//! How many files this process may open: each connection is one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::server::connections::TURNED_AWAY;
use crate::store;

/// What is open beside connections: the listener, standard streams, what the runtime has.
const BESIDES: usize = 64;

/// A server that takes fewer connections than this will soon be felt to; more are enough for most.
const FEW: usize = 4_096;

/// Raises the limit to what this process may have, and gives how many of the connections that are wanted it has room for.
pub(super) fn connections(wanted: usize, store: &store::Limits) -> usize {
    let files = usize::try_from(raise().unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
    let possible = room(files, store.connections_in_all() as usize);
    if possible < wanted {
        let told = "this process may not open enough files for --http-connections, and takes fewer connections: raise \
                    the limit (`ulimit -n`, LimitNOFILE=, `--ulimit nofile=`), or lower --http-connections";
        if possible < FEW {
            tracing::warn!(files, wanted, possible, "{told}");
        } else {
            tracing::info!(files, wanted, possible, "{told}");
        }
    }
    wanted.min(possible)
}

/// The limit that holds now, unless there is none.
fn raise() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return current;
    }
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => maximum,
        Err(_) => current,
    }
}

/// How many connections of clients there is room for beside everything else; always for one.
fn room(files: usize, database: usize) -> usize {
    files.saturating_sub(TURNED_AWAY + BESIDES + database).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_what_is_left_of_the_files() {
        assert_eq!(room(1_024, 15), 1_024 - 256 - 64 - 15);
        assert_eq!(room(335, 15), 1);
        assert_eq!(room(20, 15), 1);
        assert_eq!(room(usize::MAX, 15), usize::MAX - 335);
    }
}
