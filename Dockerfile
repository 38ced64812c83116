# Builds with the classic builder and with BuildKit alike: no `# syntax=` line, no mounts.
#
#   docker build -t solejob .
#   docker run --rm -p 127.0.0.1:8080:8080 -e DATABASE_URL=… -e SOLEJOB_MIGRATE=true solejob
#
# Without a database at hand: see docker-compose.yml.

FROM rust:1.95-bookworm AS builder
WORKDIR /build

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


FROM debian:bookworm-slim

# Needed only for PostgreSQL over TLS: the server checks its certificate against the system's roots, and the slim
# image has none. The bundle is one file, so it comes from the builder instead of a package with OpenSSL in tow.
# For a private authority, mount its certificate and name it: DATABASE_URL=…?sslmode=verify-full&sslrootcert=/ca.crt
COPY --from=builder /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=builder /build/target/release/solejob /usr/local/bin/solejob

# By number, so that Kubernetes can tell that it is not root (runAsNonRoot). The server writes no files.
USER 10001:10001

# All addresses: a published port arrives at the container's own address, never at its loopback.
ENV SOLEJOB_LISTEN=0.0.0.0:8080
EXPOSE 8080

# Asks /readyz: the process answers and its database is reachable and migrated. No shell and no curl needed.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["/usr/local/bin/solejob", "healthcheck"]

# The server handles SIGTERM itself and drains for up to 25 seconds: give it longer than Docker's usual 10
# (docker run --stop-timeout 30).
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
