"""Style and script of the reports' HTML frame: what makes charts follow the reader's light or dark setting and tables
filter. A page says all it has to say without the script, but for the charts.
"""

from __future__ import annotations

__all__ = ["PALETTE", "SCRIPT", "STYLE"]

PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a8a8a")
"""Line colours that people with any colour vision tell apart (Okabe, Ito, "Color Universal Design", 2008; its yellow
and black do not show on both backgrounds: grey stands for them)."""

STYLE = """
:root{color-scheme:light dark;--ink:#1d2430;--dim:#5d6777;--line:#d9dee6;--paper:#fff;--mark:#b84a00}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ef;--dim:#9aa4b2;--line:#333c49;--paper:#14181f;--mark:#ff9a5c}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);
max-width:76rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem;margin-bottom:.2rem}h2{font-size:1.15rem;margin:2.2rem 0 .6rem;border-bottom:1px solid var(--line)}
nav a{color:inherit;margin-right:1rem}
table{border-collapse:collapse;font-size:.87rem;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.2rem .9rem .2rem 0;
border-bottom:1px solid var(--line);vertical-align:top}td.n,th.n{text-align:right}th{color:var(--dim);font-weight:600}
td.t{font:.78rem/1.4 ui-monospace,monospace;white-space:pre-wrap;overflow-wrap:anywhere;min-width:16rem}
td.t div{max-height:7rem;overflow-y:auto}td.w{min-width:14rem}
.dim{color:var(--dim)}.scroll{overflow-x:auto}
.tall{max-height:38rem;overflow-y:auto}.tall th{position:sticky;top:0;background:var(--paper)}
.filter{margin:.4rem 0}.filter label{margin-right:1rem}:focus-visible{outline:2px solid var(--mark)}
code{font-size:.9em}.chart{min-height:22rem}figure{margin:1rem 0}
"""

SCRIPT = """
(()=>{
const shown=matchMedia('(prefers-color-scheme: dark)');
function colour(name){return getComputedStyle(document.documentElement).getPropertyValue(name).trim();}
function dressed(layout){const ink=colour('--ink'),line=colour('--line');
 const axis={gridcolor:line,zerolinecolor:line,linecolor:line};
 const full={...layout,font:{color:ink,...layout.font},paper_bgcolor:'rgba(0,0,0,0)',plot_bgcolor:'rgba(0,0,0,0)',
  modebar:{bgcolor:'rgba(0,0,0,0)',color:line,activecolor:ink}};
 for(const name of ['xaxis','yaxis'])full[name]={...axis,...layout[name]};
 full.shapes=(layout.shapes||[]).map(s=>s.label?{...s,label:{...s.label,font:{size:11,color:ink}}}:s);
 return full;}
const charts=[...document.querySelectorAll('.chart')].map(box=>({box,
 figure:JSON.parse(box.nextElementSibling.textContent)}));
function draw(){for(const {box,figure} of charts)
 Plotly.react(box,figure.data,dressed(figure.layout),{responsive:true,displaylogo:false});}
draw();
shown.addEventListener('change',draw);

function control(form,name,input){const label=document.createElement('label');
 label.append(name+' ',input);form.append(label);return input;}
for(const box of document.querySelectorAll('[data-filter]')){
 const table=box.querySelector('table'),rows=[...table.tBodies[0].rows];
 const texts=rows.map(row=>row.textContent.toLowerCase());
 const form=document.createElement('div');form.className='filter';form.setAttribute('role','search');
 const typed=control(form,'Filter',document.createElement('input'));typed.type='search';
 const heads=[...table.tHead.rows[0].cells].map(cell=>cell.textContent),selects=[];
 for(const at of box.dataset.filter.split(',').filter(Boolean).map(Number)){
  const select=control(form,heads[at],document.createElement('select'));
  const values=[...new Set(rows.map(row=>row.cells[at].textContent))].sort();
  select.append(new Option('all','0'),...values.map((value,index)=>new Option(value,String(index+1))));
  selects.push({at,select,values});}
 const told=document.createElement('output');told.setAttribute('aria-live','polite');form.append(told);
 function apply(){const words=typed.value.toLowerCase().split(/\\s+/).filter(Boolean);let count=0;
  rows.forEach((row,index)=>{
   const fits=words.every(word=>texts[index].includes(word))&&selects.every(({at,select,values})=>
    select.value==='0'||row.cells[at].textContent===values[Number(select.value)-1]);
   row.hidden=!fits;count+=fits;});
  told.textContent=count+' of '+rows.length+' rows';}
 form.addEventListener('input',apply);
 box.before(form);apply();
}
})();
"""
