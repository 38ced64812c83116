# Builds with the classic builder and with BuildKit alike: no `# syntax=` line, no mounts.
#
#   docker build -t solejob .
#   docker run --rm -p 127.0.0.1:8080:8080 -e DATABASE_URL=… -e SOLEJOB_MIGRATE=true solejob
#
# Without a database at hand: see docker-compose.yml. In production: see deploy/ and docs/operations.md.
#
# The same commit gives the same binary: compiler and dependencies are pinned (the tag, Cargo.lock), and no path or time of
# the build is in it. For an image that is the same to the byte, name both bases by their digests, and give BuildKit the
# time of the commit:
#
#   docker build --build-arg RUST=rust:1.95.0-bookworm@sha256:… --build-arg DEBIAN=debian:bookworm-slim@sha256:… \
#       --build-arg SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) -t solejob .

ARG RUST=rust:1.95.0-bookworm
ARG DEBIAN=debian:bookworm-slim

# hadolint ignore=DL3006
FROM ${RUST} AS builder
WORKDIR /build
ENV RUSTFLAGS="--remap-path-prefix=/build=solejob --remap-path-prefix=/usr/local/cargo=cargo"

# The dependencies in a layer of their own: built against empty sources (the benchmark only has to be there), so that
# it is made anew only when Cargo.toml or Cargo.lock change. A change in src/ costs the compilation of this one package.
COPY Cargo.toml Cargo.lock build.rs ./
RUN mkdir -p src benches/speed \
    && touch src/lib.rs benches/speed/main.rs \
    && echo 'fn main() {}' > src/main.rs \
    && cargo build --release --locked --bin solejob

# Pages and migrations are compiled into the binary; nothing of them is needed later.
COPY migrations migrations
COPY docs docs
COPY src src
# COPY keeps the files' own times, which may be older than the build above; cargo goes by the time.
RUN touch src/lib.rs src/main.rs \
    && cargo build --release --locked --bin solejob


# hadolint ignore=DL3006
FROM ${DEBIAN}

# Needed only for PostgreSQL over TLS: the server checks its certificate against the system's roots, and the slim
# image has none. The bundle is one file, so it comes from the builder instead of a package with OpenSSL in tow.
# For a private authority, mount its certificate and name it: DATABASE_URL=…?sslmode=verify-full&sslrootcert=/ca.crt
COPY --from=builder /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=builder /build/target/release/solejob /usr/local/bin/solejob

# By number, so that Kubernetes can tell that it is not root (runAsNonRoot). The server writes no files: run it with
# --read-only, --cap-drop ALL and --security-opt no-new-privileges.
USER 10001:10001

# All addresses: a published port arrives at the container's own address, never at its loopback.
ENV SOLEJOB_LISTEN=0.0.0.0:8080
EXPOSE 8080

# Asks /readyz: the process answers and its database is reachable and migrated. No shell and no curl needed. With
# SOLEJOB_TLS_CERT set it asks over TLS.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["/usr/local/bin/solejob", "healthcheck"]

# The server handles SIGTERM itself and takes up to 25 seconds (SOLEJOB_SHUTDOWN_GRACE), and before that as long as
# SOLEJOB_DRAIN_DELAY says: give it longer than Docker's usual 10 (docker run --stop-timeout 30).
ENTRYPOINT ["/usr/local/bin/solejob"]
CMD ["serve"]

# Last, because they change with every build: --build-arg VERSION=1.2.3 --build-arg REVISION=$(git rev-parse HEAD)
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Solejob" \
      org.opencontainers.image.description="An HTTP server that takes job dispatches and never creates the same job twice" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
