#include "ckpt/pending_pages.h"

#ifdef SHARDWRIGHT_PROTECT_PENDING
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "ckpt/error.h"
#endif

namespace shardwright::ckpt {

#ifdef SHARDWRIGHT_PROTECT_PENDING

namespace {

void set_protection(std::span<const std::byte> memory, int protection) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<std::uintptr_t>(memory.data()) + page - 1) / page * page;
  const auto end = (reinterpret_cast<std::uintptr_t>(memory.data()) + memory.size()) / page * page;
  if (begin >= end) return;
  if (::mprotect(reinterpret_cast<void*>(begin), end - begin, protection) != 0)
    throw_errno(errno, "its pages cannot be protected", "memory of a snapshot");
}

}  // namespace

void protect_pages(std::span<const std::byte> memory) { set_protection(memory, PROT_READ); }
void release_pages(std::span<const std::byte> memory) { set_protection(memory, PROT_READ | PROT_WRITE); }

#else

void protect_pages(std::span<const std::byte>) {}
void release_pages(std::span<const std::byte>) {}

#endif

}  // namespace shardwright::ckpt
