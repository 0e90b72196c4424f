#include "trainer/heartbeat.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "ckpt/record_fields.h"
#include "trainer/heartbeat_address.h"

namespace shardwright::trainer {
namespace {

constexpr std::size_t kMaxMessage = 8192;

ErrorCode parse_code(const std::string& text) {
  for (int i = 0; i <= static_cast<int>(ErrorCode::preempted); ++i)
    if (text == name(static_cast<ErrorCode>(i))) return static_cast<ErrorCode>(i);
  return ErrorCode::peer;
}

}  // namespace

std::string encode(const Heartbeat& h) {
  nlohmann::json json{{"rank", h.rank},   {"generation", h.generation},
                      {"phase", h.phase}, {"progress", h.progress},
                      {"step", h.step},   {"deadline_s", h.deadline_s}};
  if (h.kind == Heartbeat::Kind::fail)
    json["fail"] = {{"cause", h.cause},
                    {"code", name(h.code)},
                    {"message", h.message.substr(0, kMaxMessage)},
                    {"path", h.path.substr(0, kMaxMessage)}};
  if (h.kind == Heartbeat::Kind::finish) json["finish"] = h.status;
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::optional<Heartbeat> decode(const std::string& datagram) {
  try {
    const auto json = nlohmann::json::parse(datagram);
    Heartbeat h;
    h.rank = ckpt::integer_field<int>(json, "rank");
    h.generation = ckpt::number_field(json, "generation");
    h.phase = json.at("phase").get<std::string>();
    h.progress = ckpt::number_field(json, "progress");
    h.step = ckpt::integer_field<std::int64_t>(json, "step");
    h.deadline_s = json.at("deadline_s").get<double>();
    if (const auto fail = json.find("fail"); fail != json.end()) {
      h.kind = Heartbeat::Kind::fail;
      h.cause = fail->at("cause").get<std::string>();
      h.code = parse_code(fail->at("code").get<std::string>());
      h.message = fail->at("message").get<std::string>();
      h.path = fail->at("path").get<std::string>();
    } else if (json.contains("finish")) {
      h.kind = Heartbeat::Kind::finish;
      h.status = ckpt::integer_field<int>(json, "finish");
    }
    return h;
  } catch (const std::exception&) {
    return std::nullopt;  // not from a rank of ours: the socket takes what anybody of this user sends
  }
}

HeartbeatSender::HeartbeatSender(const std::string& address) {
  fd_ = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd_ < 0) throw_errno(errno, "cannot make a socket for heartbeats", address);
  const AbstractAddress to(address);
  // A failed connect shows again at each send, as nobody.
  (void)::connect(fd_, to.get(), to.size());
}

HeartbeatSender::~HeartbeatSender() { ::close(fd_); }

HeartbeatSender::Result HeartbeatSender::send(const Heartbeat& heartbeat) {
  const std::string text = encode(heartbeat);
  if (::send(fd_, text.data(), text.size(), MSG_NOSIGNAL) >= 0) return Result::sent;
  return errno == EAGAIN || errno == ENOBUFS || errno == EINTR ? Result::full : Result::nobody;
}

HeartbeatSender::Result HeartbeatSender::send_surely(const Heartbeat& heartbeat, double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  Result result = send(heartbeat);
  while (result == Result::full && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    result = send(heartbeat);
  }
  return result;
}

}  // namespace shardwright::trainer
