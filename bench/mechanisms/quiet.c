/*
 * What does a quiet window cost, and what does it save?
 *
 * Pages leave by UFFDIO_MOVE, one scattered page a call, while a second thread
 * of the program counts on the other CPU. batch=0: as they come, each move
 * interrupts that CPU. Otherwise a process pinned there spins while a batch
 * moves, so that the kernel need not interrupt it. "own" is the mover's time,
 * "other loses" what the counting thread could not do. fifo=1: SCHED_FIFO;
 * fifo=0: an ordinary thread with the least niceness. Needs root and two CPUs.
 *
 *   cc -O2 -pthread quiet.c -o quiet && ./quiet
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>
struct uffdio_move_ { uint64_t dst, src, len, mode; int64_t move; };
#define UFFDIO_MOVE_ _IOWR(0xAA, 5, struct uffdio_move_)
#define N 65536
static char *src,*dst; static int uffd; static atomic_int stop; static volatile uint64_t spins;
static double now(void){struct timespec t;clock_gettime(CLOCK_MONOTONIC,&t);return t.tv_sec*1e9+t.tv_nsec;}
static void pin(int c){cpu_set_t s;CPU_ZERO(&s);CPU_SET(c,&s);sched_setaffinity(0,sizeof s,&s);}
static void *spin(void*a){pin(1);uint64_t n=0;while(!atomic_load(&stop)){n++;_mm_pause();spins=n;}return 0;}
static int mv(char*d,char*s,size_t l){struct uffdio_move_ m={(uint64_t)d,(uint64_t)s,l,0,0};int r=ioctl(uffd,UFFDIO_MOVE_,&m);return r?-errno:0;}
struct sh { atomic_int go, ready, done; } *sh;
static long fut(atomic_int*a,int op,int v){return syscall(SYS_futex,a,op,v,0,0,0);}
static void helper(int fifo){ pin(1); struct sched_param p={.sched_priority=fifo?1:0}; sched_setscheduler(0,fifo?SCHED_FIFO:SCHED_OTHER,&p); if(!fifo) setpriority(0,0,-20);
 int seen=0; for(;;){ while(atomic_load(&sh->go)==seen) fut(&sh->go,FUTEX_WAIT,seen); seen=atomic_load(&sh->go); atomic_store(&sh->ready,seen); double t=now(); while(atomic_load(&sh->done)!=seen && now()-t<300e3) _mm_pause(); } }
#include <sys/resource.h>
int main(){
 sh=mmap(0,4096,3,MAP_SHARED|MAP_ANONYMOUS,-1,0);
 for(int fifo=1;fifo>=0;fifo--){
 memset(sh,0,sizeof *sh);
 pid_t h=fork(); if(!h){helper(fifo);}
 pin(0);
 src=mmap(0,(size_t)N*4096,3,MAP_PRIVATE|MAP_ANONYMOUS,-1,0);madvise(src,(size_t)N*4096,MADV_NOHUGEPAGE);
 dst=mmap(0,(size_t)N*4096,3,MAP_PRIVATE|MAP_ANONYMOUS,-1,0);madvise(dst,(size_t)N*4096,MADV_NOHUGEPAGE);
 uffd=syscall(SYS_userfaultfd,O_CLOEXEC|O_NONBLOCK);
 struct uffdio_api api={.api=UFFD_API,.features=1<<16};ioctl(uffd,UFFDIO_API,&api);
 struct uffdio_register r={.range={(uint64_t)src,(size_t)N*4096},.mode=1};
 struct uffdio_range ur={(uint64_t)src,(size_t)N*4096};
 pthread_t t; atomic_store(&stop,0); pthread_create(&t,0,spin,0); usleep(20000);
 double a=now(); uint64_t s0=spins; usleep(50000); double b=now(); double rate=(spins-s0)/(b-a);
 for(int batch=0;batch<=128;batch=batch?batch*2:8){
  ioctl(uffd,UFFDIO_UNREGISTER,&ur);memset(src,1,(size_t)N*4096);ioctl(uffd,UFFDIO_REGISTER,&r);{struct uffdio_register r2={.range={(uint64_t)dst,(size_t)N*4096},.mode=1};ioctl(uffd,UFFDIO_REGISTER,&r2);}
  madvise(dst,(size_t)N*4096,MADV_DONTNEED);
  int e=0; double t0=now(); s0=spins; double open=0; int seq=sh->go; double w=0;
  int step=batch?batch:32;
  for(int i=0;i+step<=16384;i+=step){
   if(batch){ double q=now(); seq++; atomic_store(&sh->go,seq); fut(&sh->go,FUTEX_WAKE,1); while(atomic_load(&sh->ready)!=seq) _mm_pause(); open+=now()-q; }
   for(int k=0;k<step;k++){size_t p=((size_t)(i+k)*7919)%N; if(mv(dst+(size_t)(i+k)*4096,src+p*4096,4096))e++;}
   if(batch) atomic_store(&sh->done,seq);
   // let the other one run a little between batches
   double q=now(); while(now()-q<200e3) _mm_pause(); w+=now()-q;
  }
  double T=now()-t0; double lost=T-(spins-s0)/rate;
  printf("fifo=%d batch=%d: own %.2f us/page (open %.1f us) other loses %.2f us/page err=%d\n",fifo,batch,(T-w)/16384/1e3,batch?open/(16384/batch)/1e3:0,lost/16384/1e3,e);
 }
 atomic_store(&stop,1);pthread_join(t,0);kill(h,9);waitpid(h,0,0);close(uffd);
 }
}
