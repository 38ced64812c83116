//! Faults that a test may switch on, one at a time, to show that the checker of histories sees them. Without the feature
//! `mutants` nothing of them is compiled: `mutant!` is then its sound half alone.

#[cfg(not(feature = "mutants"))]
macro_rules! mutant {
    ($name:literal: $faulty:expr, else $sound:expr) => {
        $sound
    };
}

#[cfg(feature = "mutants")]
macro_rules! mutant {
    ($name:literal: $faulty:expr, else $sound:expr) => {
        if crate::mutants::is($name) { $faulty } else { $sound }
    };
}

/// Whether this is the fault that the environment names.
#[cfg(feature = "mutants")]
pub(crate) fn is(name: &str) -> bool {
    static CHOSEN: std::sync::LazyLock<Option<std::ffi::OsString>> =
        std::sync::LazyLock::new(|| std::env::var_os("SOLEJOB_MUTANT"));
    CHOSEN.as_ref().is_some_and(|chosen| chosen == name)
}
