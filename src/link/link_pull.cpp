// SPDX-License-Identifier: BSL-1.0
#include <asio_rdma/detail/verbs/scatter_gather.hpp>

#include "link/link_pull.hpp"

#include "link/link_impl.hpp"

#include <algorithm>

namespace asio_rdma::detail {
namespace {

// Four READs of this size at a time keep a device busy.
constexpr std::uint64_t read_piece = std::uint64_t(1) << 20;

} // namespace

link_pull::link_pull(link_impl& link, done_function done) noexcept
    : link_(link),
      done_(done),
      reads_{{{link, *this}, {link, *this}, {link, *this}, {link, *this}}} {}

void link_pull::start(const mutable_buffer& to, const remote_buffer& from) {
  to_ = to;
  from_ = from;
  failure_ = {};
  left_ = 0;
  for (std::size_t i = 0; i < reads_.size() && from_.size != 0; ++i)
    if (!post(reads_[i]))
      return;
  if (under_way_ == 0)
    done_(*this);
}

bool link_pull::post(read& r) {
  const std::uint64_t longest = link_.member_device().max_message_bytes();
  const std::uint64_t bytes = std::min({from_.size, read_piece, longest});
  r.elements[0] = element_of(to_.first(bytes));
  r.wr.num_sge = 1;
  r.wr.opcode = IBV_WR_RDMA_READ;
  r.wr.wr.rdma = {from_.address, from_.rkey};
  failure_ = link_.open_sink(r, to_.is_device_only());
  if (failure_) {
    stop();
    return true;
  }
  if (!link_.post(r))
    return false;
  link_.read_posted(bytes);
  to_ += bytes;
  from_ += bytes;
  ++under_way_;
  return true;
}

void link_pull::read::on_done(link_transfer& t, operation_list&) {
  auto& self = static_cast<read&>(t);
  link_pull& p = self.owner;
  --p.under_way_;
  p.link_.read_returned(self.elements[0].length);
  p.link_.gather(); // the next READ, and the frame that says that all is read
  if (t.ec || (p.from_.size != 0 && !p.post(self)))
    return; // the link fails
  if (p.under_way_ == 0)
    p.done_(p);
}

} // namespace asio_rdma::detail
