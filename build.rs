//! A migration that is added changes the binary, though no source file does.

fn main() {
    println!("cargo:rerun-if-changed=migrations");
}
