/*
 * What does it cost to take a page out of a mapping, one CPU active and two?
 *
 * Each way unmaps 4 KiB pages of one range: UFFDIO_MOVE one by one, in windows
 * with holes, and 16 neighbours at a time; process_madvise(MADV_DONTNEED) in
 * batches; and vmsplice, that and read, which keep what is written meanwhile.
 * "two=1" runs a second thread that only counts: "spins/ms" falls by what the
 * TLB shootdowns take from it.
 *
 *   cc -O2 -pthread eviction.c -o eviction && ./eviction
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
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
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>
struct uffdio_move_ { uint64_t dst, src, len, mode; int64_t move; };
#define UFFDIO_MOVE_ _IOWR(0xAA, 5, struct uffdio_move_)
#define N 65536
static char *src, *dst; static int uffd;
static atomic_int stop; static volatile uint64_t spins;
static double now(void){struct timespec t;clock_gettime(CLOCK_MONOTONIC,&t);return t.tv_sec*1e9+t.tv_nsec;}
static void pin(int c){cpu_set_t s;CPU_ZERO(&s);CPU_SET(c,&s);sched_setaffinity(0,sizeof s,&s);}
static void *spin(void*a){pin(1);uint64_t n=0;while(!atomic_load(&stop)){n++;_mm_pause();spins=n;}return 0;}
static int mv(char*d,char*s,size_t l,int mode){struct uffdio_move_ m={(uint64_t)d,(uint64_t)s,l,mode,0};int r=ioctl(uffd,UFFDIO_MOVE_,&m);return r?-errno:0;}
static void fill(void){memset(src,1,(size_t)N*4096);}
int main(){
 pin(0);
 src=mmap(0,(size_t)N*4096,3,MAP_PRIVATE|MAP_ANONYMOUS,-1,0);madvise(src,(size_t)N*4096,MADV_NOHUGEPAGE);
 dst=mmap(0,(size_t)N*4096,3,MAP_PRIVATE|MAP_ANONYMOUS,-1,0);madvise(dst,(size_t)N*4096,MADV_NOHUGEPAGE);
 uffd=syscall(SYS_userfaultfd,O_CLOEXEC|O_NONBLOCK);
 struct uffdio_api api={.api=UFFD_API,.features=1<<16};ioctl(uffd,UFFDIO_API,&api);
 struct uffdio_register r={.range={(uint64_t)src,(size_t)N*4096},.mode=1};ioctl(uffd,UFFDIO_REGISTER,&r);
 r.range.start=(uint64_t)dst;ioctl(uffd,UFFDIO_REGISTER,&r);
 struct uffdio_range ur={(uint64_t)src,(size_t)N*4096};
 pthread_t t;
 for(int two=0;two<2;two++){
  if(two){atomic_store(&stop,0);pthread_create(&t,0,spin,0);usleep(10000);}
  #define FILL() do{ioctl(uffd,UFFDIO_UNREGISTER,&ur);fill();r.range.start=(uint64_t)src;ioctl(uffd,UFFDIO_REGISTER,&r);}while(0)
  FILL(); madvise(dst,(size_t)N*4096,MADV_DONTNEED);
  double t0=now();uint64_t s0=spins; int e=0;
  for(int i=0;i<16384;i++){size_t p=((size_t)i*7919)%N; if(mv(dst+(size_t)i*4096,src+p*4096,4096,0))e++;}
  double t1=now();
  printf("two=%d MOVE out random: %.0f ns err=%d  spins/ms %.0f\n",two,(t1-t0)/16384,e,(spins-s0)/((t1-t0)/1e6));
  t0=now();e=0;
  for(int i=0;i<16384;i++){size_t p=((size_t)i*7919)%N; if(mv(src+p*4096,dst+(size_t)i*4096,4096,0))e++;}
  t1=now();
  printf("two=%d MOVE back: %.0f ns err=%d\n",two,(t1-t0)/16384,e);
  FILL(); madvise(dst,(size_t)N*4096,MADV_DONTNEED);
  // holes: keep 1 in 8 pages
  for(int i=0;i<N;i++) if(i%8) madvise(src+(size_t)i*4096,4096,MADV_DONTNEED);
  t0=now();e=0; for(int i=0;i<N/64;i++){int q=mv(dst+(size_t)i*64*4096,src+(size_t)i*64*4096,64*4096,1<<1);if(q)e=q;} t1=now();
  printf("two=%d MOVE 64-window with 8 present (holes): %.0f ns/present err=%d\n",two,(t1-t0)/(N/8),e);
  FILL(); madvise(dst,(size_t)N*4096,MADV_DONTNEED);
  t0=now();e=0; for(int i=0;i<N/16;i++){int q=mv(dst+(size_t)i*16*4096,src+(size_t)i*16*4096,16*4096,0);if(q)e=q;} t1=now();
  printf("two=%d MOVE 16 contiguous: %.0f ns/page err=%d\n",two,(t1-t0)/N,e);
  FILL();
  { int pidfd=syscall(SYS_pidfd_open,getpid(),0); struct iovec v[64];
   for(int b=1;b<=64;b*=4){
    FILL();
    t0=now();s0=spins;int done=0; for(int i=0;i+b<=16384;i+=b){for(int k=0;k<b;k++){size_t p=((size_t)(i+k)*7919)%N;v[k].iov_base=src+p*4096;v[k].iov_len=4096;} ssize_t q=syscall(SYS_process_madvise,pidfd,v,b,MADV_DONTNEED,0);if(q!=b*4096)e=errno;done+=b;} t1=now();
    printf("two=%d process_madvise DONTNEED b=%d: %.0f ns/page err=%d spins/ms %.0f\n",two,b,(t1-t0)/done,e,(spins-s0)/((t1-t0)/1e6));}
   int pp[2];pipe(pp);fcntl(pp[1],F_SETPIPE_SZ,1<<20);FILL();static char buf[64*4096];
   double va=0,vb=0,vc=0;int done=0,b=64;
   for(int i=0;i+b<=16384;i+=b){for(int k=0;k<b;k++){size_t p=((size_t)(i+k)*7919)%N;v[k].iov_base=src+p*4096;v[k].iov_len=4096;}
     double a=now();ssize_t q=vmsplice(pp[1],v,b,0);double a2=now();syscall(SYS_process_madvise,pidfd,v,b,MADV_DONTNEED,0);double a3=now();for(int k=0;k<b;k++)if(read(pp[0],buf,4096)!=4096)e=1;double a4=now();if(q!=b*4096)e=2;va+=a2-a;vb+=a3-a2;vc+=a4-a3;done+=b;}
   printf("two=%d vmsplice %.0f madvise %.0f read %.0f err=%d\n",two,va/done,vb/done,vc/done,e);
   close(pidfd);
  }
  // COPY in
  FILL();madvise(src,(size_t)N*4096,MADV_DONTNEED);
  static char page[4096] __attribute__((aligned(4096)));
  t0=now();for(int i=0;i<16384;i++){size_t p=((size_t)i*7919)%N;struct uffdio_copy c={.dst=(uint64_t)src+p*4096,.src=(uint64_t)page,.len=4096};ioctl(uffd,UFFDIO_COPY,&c);}t1=now();
  printf("two=%d COPY: %.0f ns\n",two,(t1-t0)/16384);
  t0=now();for(int i=0;i<200000;i++)syscall(SYS_getppid);t1=now();printf("two=%d syscall %.0f ns\n",two,(t1-t0)/200000);
  madvise(dst,(size_t)N*4096,MADV_DONTNEED);
  FILL();t0=now();for(int i=0;i<16384;i++){size_t p=((size_t)i*7919)%N; madvise(src+p*4096,4096,MADV_DONTNEED);}t1=now();
  printf("two=%d madvise DONTNEED single: %.0f ns\n",two,(t1-t0)/16384);
 }
 atomic_store(&stop,1);
}
