// SPDX-License-Identifier: BSL-1.0
#include "settings/words.hpp"

#include "settings/settings.hpp"

#include <cerrno>
#include <infiniband/verbs.h>

namespace soft::words {
namespace {

std::optional<int> find(std::span<const named> all, std::string_view word) noexcept {
  for (const named& n : all)
    if (n.word == word)
      return n.value;
  return std::nullopt;
}

constexpr int mask(place p) { return static_cast<int>(bit_of(p)); }
constexpr named place_words[] = {
    {"now", mask(place::now)},
    {"send", mask(place::send)},
    {"write", mask(place::write)},
    {"read", mask(place::read)},
    {"atomic", mask(place::atomic)},
    {"bind", mask(place::bind)},
    {"request", static_cast<int>(request_places)},
    {"recv", mask(place::receive)},
    {"alloc_pd", mask(place::alloc_pd)},
    {"reg_mr", mask(place::reg_mr)},
    {"alloc_mw", mask(place::alloc_mw)},
    {"create_cq", mask(place::create_cq)},
    {"create_srq", mask(place::create_srq)},
    {"create_qp", mask(place::create_qp)},
    {"modify_qp", mask(place::modify_qp)},
    {"post_send", mask(place::post_send)},
    {"post_recv", mask(place::post_recv)},
    {"connect", mask(place::connect)},
};

constexpr named status_words[] = {
    {"loc_len", IBV_WC_LOC_LEN_ERR},           {"loc_qp_op", IBV_WC_LOC_QP_OP_ERR},
    {"loc_prot", IBV_WC_LOC_PROT_ERR},         {"wr_flush", IBV_WC_WR_FLUSH_ERR},
    {"mw_bind", IBV_WC_MW_BIND_ERR},           {"bad_resp", IBV_WC_BAD_RESP_ERR},
    {"loc_access", IBV_WC_LOC_ACCESS_ERR},     {"rem_inv_req", IBV_WC_REM_INV_REQ_ERR},
    {"rem_access", IBV_WC_REM_ACCESS_ERR},     {"rem_op", IBV_WC_REM_OP_ERR},
    {"retry", IBV_WC_RETRY_EXC_ERR},           {"rnr_retry", IBV_WC_RNR_RETRY_EXC_ERR},
    {"rem_abort", IBV_WC_REM_ABORT_ERR},       {"fatal", IBV_WC_FATAL_ERR},
    {"resp_timeout", IBV_WC_RESP_TIMEOUT_ERR}, {"general", IBV_WC_GENERAL_ERR},
};

constexpr named error_words[] = {
    {"eperm", EPERM},           {"eio", EIO},
    {"eagain", EAGAIN},         {"enomem", ENOMEM},
    {"eacces", EACCES},         {"efault", EFAULT},
    {"ebusy", EBUSY},           {"enodev", ENODEV},
    {"einval", EINVAL},         {"emfile", EMFILE},
    {"enospc", ENOSPC},         {"enosys", ENOSYS},
    {"eopnotsupp", EOPNOTSUPP}, {"etimedout", ETIMEDOUT},
};

constexpr named event_words[] = {
    {"cq_err", IBV_EVENT_CQ_ERR},
    {"qp_fatal", IBV_EVENT_QP_FATAL},
    {"qp_req_err", IBV_EVENT_QP_REQ_ERR},
    {"qp_access_err", IBV_EVENT_QP_ACCESS_ERR},
    {"comm_est", IBV_EVENT_COMM_EST},
    {"sq_drained", IBV_EVENT_SQ_DRAINED},
    {"path_mig", IBV_EVENT_PATH_MIG},
    {"path_mig_err", IBV_EVENT_PATH_MIG_ERR},
    {"device_fatal", IBV_EVENT_DEVICE_FATAL},
    {"port_active", IBV_EVENT_PORT_ACTIVE},
    {"port_err", IBV_EVENT_PORT_ERR},
    {"lid_change", IBV_EVENT_LID_CHANGE},
    {"pkey_change", IBV_EVENT_PKEY_CHANGE},
    {"sm_change", IBV_EVENT_SM_CHANGE},
    {"client_reregister", IBV_EVENT_CLIENT_REREGISTER},
    {"gid_change", IBV_EVENT_GID_CHANGE},
};

// InfiniBand specification, table 109.
constexpr named reason_words[] = {{"no_listener", 8}, {"stale", 10}, {"consumer", 28}};

} // namespace

std::span<const named> all_places() noexcept { return place_words; }
std::span<const named> all_completion_statuses() noexcept { return status_words; }
std::span<const named> all_error_numbers() noexcept { return error_words; }
std::span<const named> all_event_types() noexcept { return event_words; }
std::span<const named> all_reject_reasons() noexcept { return reason_words; }

std::optional<std::uint32_t> places(std::string_view word) noexcept {
  const auto found = find(place_words, word);
  return found ? std::optional(static_cast<std::uint32_t>(*found)) : std::nullopt;
}
std::optional<int> completion_status(std::string_view word) noexcept {
  return find(status_words, word);
}
std::optional<int> error_number(std::string_view word) noexcept { return find(error_words, word); }
std::optional<int> event_type(std::string_view word) noexcept { return find(event_words, word); }
std::optional<int> reject_reason(std::string_view word) noexcept {
  return find(reason_words, word);
}

bool is_about_device(int event) noexcept {
  switch (event) {
  case IBV_EVENT_DEVICE_FATAL:
  case IBV_EVENT_PORT_ACTIVE:
  case IBV_EVENT_PORT_ERR:
  case IBV_EVENT_LID_CHANGE:
  case IBV_EVENT_PKEY_CHANGE:
  case IBV_EVENT_SM_CHANGE:
  case IBV_EVENT_CLIENT_REREGISTER:
  case IBV_EVENT_GID_CHANGE:
    return true;
  default:
    return false;
  }
}

} // namespace soft::words
