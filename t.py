import vl_convert
for snip in ('import * as vega from "vega"; import * as vegaLite from "vega-lite"; import vegaEmbed from "vega-embed"; window.x=[vegaEmbed,vega,vegaLite];','window.x=[vegaEmbed,vegaEmbed.vega,vegaEmbed.vegaLite,vegaEmbed.vl];'):
    try:
        js=vl_convert.javascript_bundle(snip, vl_version=__import__("icl_bench.report.charts",fromlist=["x"]).VEGA_LITE)
    except Exception as e: print("ERR",str(e)[:200]); continue
    open("t.html","w").write("<meta charset=utf-8><body><script>"+js.replace("</script","<\\/script")+"</script><script>document.title=window.x.map(v=>v&&Object.keys(v).slice(0,8).join(',')).join(' | ')</script>")
    import subprocess
    out=subprocess.run("timeout 60 chromium --headless --no-sandbox --disable-gpu --user-data-dir=/tmp/page-work/p3 --dump-dom file:///tmp/page-work/t.html | grep -o '<title>.*</title>'",shell=True,capture_output=True,text=True); print(out.stdout[:400], out.stderr[-300:])
