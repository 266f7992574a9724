#pragma once
#include "raw.h"

// A process that SIGSTOP has stopped goes on when SIGCONT is generated for it, and a timer of the
// kernel's may generate any signal, at a time when no thread of the process runs.
namespace awake {

struct Event {
  long value;
  int number, kind;
  long rest[6];
};
struct Times {
  long every_s, every_ns, first_s, first_ns;
};

inline int make_timer() {
  Event event{};
  event.number = 18;  // SIGCONT
  int id = -1;
  raw(222, 1, reinterpret_cast<long>(&event), reinterpret_cast<long>(&id));  // timer_create
  return id;
}

// SIGCONT after so many nanoseconds, unless this is called again before.
inline void wake_in(int id, long ns) {
  Times times{0, 0, 0, ns};
  raw(223, id, 0, reinterpret_cast<long>(&times));  // timer_settime
}

inline void stop_self() { raw(62, raw(39), 19); }

}  // namespace awake
