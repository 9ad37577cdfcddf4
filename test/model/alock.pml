// SPDX-License-Identifier: BSL-1.0
// The asymmetric lock (Baran, Nelson-Slivon, Tseng, Palmieri: ALock, SPAA 2024): a queue for each of two cohorts and
// Peterson's algorithm between their heads. Local and remote parties, four in all, take the lock any number of times. A
// step is one access to memory. alock_protocol.hpp is the program.
//
// Local parties use the CPU, remote parties the device. Only reads and writes of 8 bytes are atomic between CPU and device.
// A compare-and-swap of the device is a read followed by a write, even if it does not exchange; the CPU may access memory
// in between, but no other atomic of the device may.
//
//   BUDGET=n      critical sections in a row of a cohort for which the other waits
//   REMOTES=n     number of remote parties: 2 or 3
//   SPLIT         the device's compare-and-swap has two steps. With one step the result is the same as
//                 long as the CPU writes no word that the device changes
//   CANCEL        parties 2 and 4 may cancel, while they wait for their turn or for the other cohort
//   CRASH         party 4 dies at any moment
//   BROKEN=1      the victim is not written
//   BROKEN=2      one queue for all, as if the atomics of CPU and device were atomic with each other
//   BROKEN=3      the other cohort's tail is read before the victim is written
//   BROKEN=4      a party that has found its predecessor dead frees the tail
//   BROKEN=5      the budget is never used up

#ifndef BUDGET
#define BUDGET 1
#endif
#ifndef REMOTES
#define REMOTES 2
#endif
#ifndef BROKEN
#define BROKEN 0
#endif

#define LOCAL 0
#define REMOTE 1
#define PARTIES 4

// Values of a tail, besides the numbers of parties.
#define FREE 0
#define ABANDONED 9

// Values of a turn: n > CONTEND allows n - CONTEND critical sections.
#define WAIT 0
#define CONTEND 1
#define DEAD 9

byte tail[2];
bit victim;
byte next[PARTIES + 1], turn[PARTIES + 1];

bit device_busy; // with an atomic
bit dead;        // party 4

// For the claims.
bit inside;
bit queued[PARTIES + 1], holds[PARTIES + 1];
bit waits[2];
byte passed_by[2];

#if BROKEN == 2
#define TAIL(cohort) tail[0]
#else
#define TAIL(cohort) tail[cohort]
#endif

#ifdef CRASH
#define IS_DEAD(party) (dead && (party) == 4)
#else
#define IS_DEAD(party) false
#endif

#ifdef CANCEL
#define MAY_CANCEL (me == 2 || me == 4)
#else
#define MAY_CANCEL false
#endif

inline compare_exchange(expected, value) {
#ifdef SPLIT
  if
  :: mine == REMOTE ->
     atomic { !device_busy; device_busy = 1; seen = TAIL(REMOTE) };
     d_step { TAIL(REMOTE) = (seen == expected -> value : seen); device_busy = 0 }
  :: mine == LOCAL ->
     atomic { seen = TAIL(LOCAL); TAIL(LOCAL) = (seen == expected -> value : seen) }
  fi
#else
  atomic { seen = TAIL(mine); TAIL(mine) = (seen == expected -> value : seen) }
#endif
}

proctype party(byte me; bit mine) {
  byte seen, before, left;

  {
outside:
  do
  :: goto stop
  :: atomic { next[me] = 0; turn[me] = WAIT };
     do
     :: compare_exchange(before, me);
        if
        :: atomic { seen == before -> seen = 0; queued[me] = 1 }; break
        :: atomic { seen == ABANDONED -> goto stop }
        :: atomic { seen != before && seen != ABANDONED -> before = seen; seen = 0 }
        fi
     od;
     if
     :: before == FREE -> goto contend
     :: before != FREE -> next[before] = me
     fi;
     if
     :: atomic { turn[me] != WAIT -> left = turn[me]; before = 0; turn[me] = WAIT }
     :: atomic { IS_DEAD(before) && turn[me] == WAIT -> left = DEAD; before = 0 }
     fi;
     if
     :: left == DEAD -> goto leave
     :: left == CONTEND -> left = 0; goto contend
     :: left > CONTEND && left != DEAD -> goto critical
     :: MAY_CANCEL && left != DEAD -> goto leave
     fi;

contend:
#if BROKEN == 2
     goto won;
#endif
#if BROKEN == 3
     seen = TAIL(1 - mine);
#endif
#if BROKEN != 1
     atomic { victim = mine; waits[mine] = 1; passed_by[mine] = 0 };
#endif
#if BROKEN == 3
     if :: seen == FREE -> goto won :: else fi;
#endif
     do
     :: atomic { TAIL(1 - mine) == FREE -> break }
     :: atomic { victim != mine -> break }
     :: atomic { mine == LOCAL && (tail[REMOTE] == ABANDONED || IS_DEAD(tail[REMOTE])) -> left = CONTEND; goto leave }
     :: atomic { MAY_CANCEL -> left = CONTEND; goto leave }
     od;
won: left = CONTEND + BUDGET;

critical:
     atomic {
       seen = 0;
       assert(!inside);
       inside = 1;
       holds[me] = 1;
       waits[mine] = 0; passed_by[mine] = 0;
       if
       :: waits[1 - mine] -> passed_by[1 - mine]++; assert(passed_by[1 - mine] <= BUDGET)
       :: !waits[1 - mine]
       fi
     };
     atomic { inside = 0; holds[me] = 0; left = left - (BROKEN == 5 -> 0 : 1) };

leave:
     atomic {
       queued[me] = 0;
       if
       :: left == CONTEND -> waits[mine] = 0; passed_by[mine] = 0
       :: left != CONTEND
       fi
     };
#if BROKEN == 4
     compare_exchange(me, FREE);
#else
     compare_exchange(me, (left == DEAD -> ABANDONED : FREE));
#endif
     if
     :: seen == me
     :: seen != me ->
#ifdef CRASH
end_linking: // for good, if the next one died before it was linked: others may be linked yet
#endif
        atomic { next[me] != 0 -> turn[next[me]] = left; next[me] = 0 }
     fi;
     // The descriptor may still be written to at any later time, so it is not used again.
     if
     :: left == DEAD -> goto stop
     :: left != DEAD -> d_step { left = 0; seen = 0 }
     fi
  od
#ifdef CRASH
  } unless { dead && me == 4 }
  // Everything that the dead party held stays held for ever.
#else
  }
#endif
  ;
stop:
  atomic { queued[me] = 0; holds[me] = 0; seen = 0; before = 0; left = 0 }
}

#ifdef CRASH
active proctype death() {
  if
  :: dead = 1
  :: true
  fi
}
#endif

init {
  atomic { run party(1, LOCAL); run party(2, (REMOTES == 2 -> LOCAL : REMOTE)); run party(3, REMOTE); run party(4, REMOTE) }
}

// A party in the queue gets the lock, or learns that it never will.
ltl local_served { [] (queued[1] -> <> (holds[1] || !queued[1])) }
ltl remote_served { [] (queued[3] -> <> (holds[3] || !queued[3])) }
