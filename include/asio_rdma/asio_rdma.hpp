// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <asio_rdma/acceptor.hpp>
#include <asio_rdma/alock.hpp>
#include <asio_rdma/buffer.hpp>
#include <asio_rdma/buffer_access.hpp>
#include <asio_rdma/completion_queue.hpp>
#include <asio_rdma/connection.hpp>
#include <asio_rdma/connector.hpp>
#include <asio_rdma/device.hpp>
#include <asio_rdma/device_events.hpp>
#include <asio_rdma/error.hpp>
#include <asio_rdma/exchange.hpp>
#include <asio_rdma/global_counter.hpp>
#include <asio_rdma/global_memory.hpp>
#include <asio_rdma/link_statistics.hpp>
#include <asio_rdma/memory_pool.hpp>
#include <asio_rdma/memory_region.hpp>
#include <asio_rdma/queue_pair.hpp>
#include <asio_rdma/registered_buffer.hpp>
#include <asio_rdma/remote_ptr.hpp>
#include <asio_rdma/remote_word.hpp>
#include <asio_rdma/shared_receive_queue.hpp>
#include <asio_rdma/shared_receives.hpp>
#include <asio_rdma/single_writer.hpp>
#include <asio_rdma/stream.hpp>
#include <asio_rdma/use_awaiter.hpp>
