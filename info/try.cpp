// SPDX-License-Identifier: BSL-1.0
// asio_rdma-info-try [--device NAME] [--address ADDRESS]: uses each device by the library, as a
// program does, and prints a line for each result (parse_tried in tried.hpp). An empty last field
// is success.
#include <asio_rdma/acceptor.hpp>
#include <asio_rdma/connection.hpp>
#include <asio_rdma/connector.hpp>
#include <asio_rdma/device.hpp>
#include <asio_rdma/memory_pool.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using asio_rdma::device, asio_rdma::error_code;
using clock_type = std::chrono::steady_clock;

void print(const std::vector<std::string>& fields) {
  std::string line;
  for (const std::string& each : fields)
    line += (line.empty() ? "" : "\t") + each;
  for (char& c : line)
    if (c == '\n')
      c = ' ';
  std::puts(line.c_str());
  std::fflush(stdout); // the next call may hang
}

std::string text_of(const error_code& ec) { return ec ? ec.message() : std::string(); }

std::string state_of(ibv_port_state state) {
  return state == IBV_PORT_ACTIVE ? "ACTIVE" : state == IBV_PORT_INIT ? "INIT" : "DOWN";
}

/// A connection to itself: the connector sends one byte, and the acceptor sends it back.
class conversation {
public:
  conversation(asio::io_context& io, asio_rdma::acceptor& acceptor,
               const asio_rdma::memory_pool& pool)
      : acceptor_(acceptor), connector_(io), accepted_(io, pool), connected_(io, pool) {}

  void start(const tcp::endpoint& where) {
    acceptor_.async_accept(accepted_, [this](error_code ec, const asio_rdma::connection_info&) {
      if (!failed(ec))
        answer();
    });
    connector_.async_connect(connected_, where,
                             [this](error_code ec, const asio_rdma::connection_info&) {
                               if (!failed(ec))
                                 ask();
                             });
  }

  /// Empty while there is no result.
  const std::optional<error_code>& result() const noexcept { return result_; }
  double microseconds() const noexcept { return microseconds_; }

private:
  bool failed(const error_code& ec) {
    if (ec && !result_)
      result_ = ec;
    return ec.failed();
  }
  void answer() {
    accepted_.async_receive([this](error_code ec, asio_rdma::message m) {
      if (failed(ec))
        return;
      received_ = std::move(m);
      accepted_.async_send(received_.payload, [this](error_code e, std::size_t) { failed(e); });
    });
  }
  void ask() {
    began_ = clock_type::now();
    connected_.async_send(asio::buffer(&byte_, 1),
                          [this](error_code ec, std::size_t) { failed(ec); });
    connected_.async_receive([this](error_code ec, asio_rdma::message) {
      if (failed(ec))
        return;
      microseconds_ = std::chrono::duration<double, std::micro>(clock_type::now() - began_).count();
      result_ = error_code();
    });
  }

  asio_rdma::acceptor& acceptor_;
  asio_rdma::connector connector_;
  asio_rdma::connection accepted_, connected_;
  asio_rdma::message received_;
  char byte_ = 1;
  clock_type::time_point began_;
  double microseconds_ = 0;
  std::optional<error_code> result_;
};

/// A context with its objects. Closing a connection may wait for the peer, so these are kept until
/// the process ends, which waits for nothing.
struct session {
  asio::io_context io{1};
  asio_rdma::acceptor acceptor{io};
  std::optional<conversation> talk;
};
std::vector<std::unique_ptr<session>> kept;

void try_connection(const std::string& name, const asio_rdma::memory_pool& pool,
                    const asio::ip::address& at) {
  using namespace std::chrono_literals;
  session& s = *kept.emplace_back(std::make_unique<session>());
  error_code ec;
  s.acceptor.open(tcp::endpoint(at, 0), asio::socket_base::max_listen_connections, ec);
  print({"listen", name, at.to_string(), text_of(ec)});
  if (ec)
    return;
  try {
    s.talk.emplace(s.io, s.acceptor, pool);
  } catch (const asio_rdma::system_error& e) {
    if (e.code() == asio::error::operation_not_supported)
      print({"device", name, "other"}); // it has no queue pairs of type RC
    else
      print({"message", name, "0", e.what()});
    return;
  }
  s.talk->start(s.acceptor.local_endpoint());
  const auto end = clock_type::now() + 5s;
  while (!s.talk->result() && s.io.run_one_until(end) != 0) {
  }
  print({"message", name, std::to_string(s.talk->microseconds()),
         s.talk->result() ? text_of(*s.talk->result()) : "no answer in 5 s"});
}

void try_device(const device& d, const std::optional<asio::ip::address>& wanted) {
  const std::string name = d.name();
  for (unsigned n = 1; n <= d.attributes().phys_port_cnt; ++n) {
    error_code ec;
    const ibv_port_attr p = d.port(std::uint8_t(n), ec);
    if (!ec)
      print({"port", name, std::to_string(n), state_of(p.state),
             std::to_string(128u << unsigned(p.active_mtu)),
             std::to_string(128u << unsigned(p.max_mtu))});
  }
  std::vector<asio::ip::address> addresses = d.addresses();
  std::optional<asio::ip::address> at;
  for (const asio::ip::address& each : addresses) {
    print({"address", name, each.to_string()});
    if (!at || (wanted && each == *wanted))
      at = each;
  }
  const asio_rdma::memory_pool pool{asio_rdma::protection_domain(d)};
  error_code ec;
  const asio_rdma::registered_buffer memory = pool.allocate(4096, ec);
  print({"memory", name, text_of(ec)});
  if (!ec && at && d.type() != asio_rdma::transport::other)
    try_connection(name, pool, *at);
}

} // namespace

int main(int argc, char* argv[]) try {
  std::string only;
  std::optional<asio::ip::address> address;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (argv[i] == std::string("--device"))
      only = argv[i + 1];
    else
      address = asio::ip::make_address(argv[i + 1]);
  }
  for (const device::description& each : device::list()) {
    if (!only.empty() && only != each.name)
      continue;
    print({"device", each.name,
           each.type == asio_rdma::transport::infiniband ? "infiniband"
           : each.type == asio_rdma::transport::iwarp    ? "iwarp"
                                                         : "other"});
    error_code ec;
    const device d = device::open(each.name, ec);
    print({"open", each.name, text_of(ec)});
    if (!ec)
      try_device(d, address);
  }
  std::fflush(stdout);
  std::_Exit(0); // see session
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  std::_Exit(1);
}
