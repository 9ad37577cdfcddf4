// SPDX-License-Identifier: BSL-1.0
//
// One kind of work by the crate async-rdma. Each line of standard input holds a number of
// operations; the program does a run of that length and prints its seconds. The other end is a
// child process: with two ends in one process, assertions of the crate's allocator fail.
use async_rdma::{LocalMrWriteAccess, Rdma, RdmaBuilder, MTU};
use clap::{Parser, ValueEnum};
use std::time::{Duration, Instant};
use std::{alloc::Layout, io, net::TcpListener, process::Command};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::time::sleep;

const RETRY: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Work {
    Write,
    Read,
    /// Messages one way, each sent when the message before it has been sent.
    Send,
}

#[derive(Parser)]
struct Plan {
    work: Work,
    #[arg(long, default_value_t = 64)]
    bytes: usize,
    #[arg(long, env = "ASIO_RDMA_DEVICE")]
    device: String,
    #[arg(long, default_value_t = 1)]
    gid_index: usize,
    /// Path MTU 4096, 16 reads at a time, and messages that are not cut into pieces.
    #[arg(long)]
    tuned: bool,
    /// Be the other end, at this TCP port.
    #[arg(long)]
    listen: Option<u16>,
}

impl Plan {
    fn builder(&self) -> RdmaBuilder {
        let builder = RdmaBuilder::default()
            .set_dev(&self.device)
            .set_gid_index(self.gid_index);
        if !self.tuned {
            return builder;
        }
        builder
            .set_mtu(MTU::MTU4096)
            .set_max_rd_atomic(16)
            .set_max_dest_rd_atomic(16)
            .set_max_message_length(self.bytes.max(512))
    }
}

/// Takes messages until the process ends.
async fn listen(plan: &Plan, port: u16) -> io::Result<()> {
    let passive = plan.builder().listen(("127.0.0.1", port)).await?;
    loop {
        passive.receive().await?;
    }
}

async fn connect(plan: &Plan, port: u16) -> io::Result<Rdma> {
    loop {
        match plan.builder().connect(("127.0.0.1", port)).await {
            // The other process does not report when its listener is ready.
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => sleep(RETRY).await,
            result => return result,
        }
    }
}

async fn run(plan: &Plan, port: u16) -> io::Result<()> {
    let rdma = connect(plan, port).await?;
    let layout = Layout::from_size_align(plan.bytes, 8).map_err(io::Error::other)?;
    // A read's memory stays locked for a while after the read, so the next read needs other memory.
    let mut locals = (0..4)
        .map(|_| rdma.alloc_local_mr(layout))
        .collect::<io::Result<Vec<_>>>()?;
    for local in &mut locals {
        local.as_mut_slice().fill(b'a');
    }
    let mut remote = rdma.request_remote_mr(layout).await?;
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let operations: u64 = line.trim().parse().map_err(io::Error::other)?;
        let begin = Instant::now();
        for local in (0..operations).map(|n| n as usize % 4) {
            let local = &mut locals[local];
            match plan.work {
                Work::Write => rdma.write(local, &mut remote).await?,
                Work::Read => rdma.read(local, &remote).await?,
                Work::Send => rdma.send(local).await?,
            }
        }
        println!("{}", begin.elapsed().as_secs_f64());
    }
    Ok(())
}

fn main() -> io::Result<()> {
    let plan = Plan::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let result = if let Some(port) = plan.listen {
        runtime.block_on(listen(&plan, port))
    } else {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut passive = Command::new(std::env::current_exe()?)
            .args(std::env::args_os().skip(1))
            .args(["--listen", &port.to_string()])
            .spawn()?;
        let result = runtime.block_on(run(&plan, port));
        passive.kill()?;
        result
    };
    if let Err(e) = &result {
        eprintln!("peer_async_rdma: {e}");
    }
    // Without destructors: some of them wait for the other end.
    std::process::exit(i32::from(result.is_err()));
}
